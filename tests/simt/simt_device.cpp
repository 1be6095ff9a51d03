#include "tests/simt/simt_device.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <new>
#include <sstream>
#include <stdexcept>

#include "compiler/emit/gpu.h"
#include "compiler/passes/passes.h"
#include "embedded/prelude_order.h"
#include "runtime/device.h"
#include "runtime/gemm/cpu.h"
#include "runtime/launch_plan.h"
#include "tests/simt/machine.h"

namespace rowjit::simt {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::int64_t kRowBlocksAtOnce = 2;  // fewer blocks than rows need, so that every kernel's row loop turns

// One compiled kernel.
struct Entry {
    void (*call)(void** arguments) = nullptr;
    std::int64_t column_blocks = 1;
    bool whole_grid = false;  // every block has a part of a sum over rows to store
};

// A loaded shared object and its kernels.
class Library : public Module {
  public:
    Library(const std::string& path, const std::vector<const Kernel*>& kernels)
        : handle_(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
        if (handle_ == nullptr) throw std::runtime_error(dlerror());
        entries_.resize(kernels.size());
        for (std::size_t i = 0; i < kernels.size(); ++i) {
            entries_[i].call =
                reinterpret_cast<void (*)(void**)>(dlsym(handle_, fmt::format("rj_simt_entry_{}", i).c_str()));
            entries_[i].column_blocks = kernels[i]->schedule.column_blocks;
            entries_[i].whole_grid = kernels[i]->slots_axis >= 0;
            functions_.push_back({&entries_[i]});
        }
    }
    // Stays mapped: a sanitizer's report at exit may point into it.
    std::span<const Function> functions() const override { return functions_; }

  private:
    void* handle_;
    std::vector<Entry> entries_;
    std::vector<Function> functions_;
};

class SimtDevice : public DeviceImpl {
  public:
    SimtDevice(Target target, std::shared_ptr<const LtLibrary> library)
        : target_(std::move(target)), library_(std::move(library)) {}

    const Target& target() const override { return target_; }
    std::string description() const override { return "SIMT machine of " + target_.name; }
    void* allocate(std::size_t bytes) override {
        void* address = nullptr;
        if (bytes > 0 && posix_memalign(&address, kAlignment, bytes) != 0) throw std::bad_alloc();
        return address;
    }
    void release(void* address) noexcept override { std::free(address); }
    void copy_to_device(void* destination, const void* source, std::size_t bytes) override {
        copy(destination, source, bytes);
    }
    void copy_to_host(void* destination, const void* source, std::size_t bytes) override {
        copy(destination, source, bytes);
    }
    void copy_on_device(void* destination, const void* source, std::size_t bytes, StreamHandle /*stream*/) override {
        copy(destination, source, bytes);
    }
    void fill(void* destination, std::uint8_t byte, std::size_t bytes, StreamHandle /*stream*/) override {
        if (bytes > 0) std::memset(destination, byte, bytes);
    }
    std::unique_ptr<Module> load(const Artifact& /*artifact*/, StreamHandle /*stream*/) override {
        throw std::logic_error("the SIMT machine runs what simt::build makes");
    }
    std::shared_ptr<const Gemm> make_gemm(const GemmType& type, const GemmShape& typical,
                                          StreamHandle /*stream*/) override {
        if (library_ != nullptr) return make_lt_gemm(library_, type, typical);
        return make_cpu_gemm(type);
    }
    // As tests/simt/prelude_product_simt.h reads it.
    const char* map_matrix(const MatrixInMemory& matrix, TensorMap* map) const noexcept override {
        const bool aligned = reinterpret_cast<std::uintptr_t>(matrix.address) % 16 == 0 && matrix.row_stride % 8 == 0;
        if (!aligned) return "a matrix's rows are no multiples of 16 bytes";
        const std::int64_t numbers[] = {reinterpret_cast<std::intptr_t>(matrix.address), matrix.rows, matrix.columns,
                                        matrix.row_stride};
        std::memcpy(map->bytes, numbers, sizeof(numbers));
        return nullptr;
    }
    const char* launch(Function function, const LaunchGeometry& geometry, StreamHandle /*stream*/,
                       void** arguments) noexcept override {
        const Entry& entry = *static_cast<Entry*>(function.handle);
        Launch launch;
        const std::int64_t most = entry.whole_grid ? geometry.grid : kRowBlocksAtOnce * entry.column_blocks;
        launch.grid = static_cast<int>(std::min<std::int64_t>(geometry.grid, most));
        launch.block = static_cast<int>(geometry.block);
        launch.warp = target_.warp_size;
        launch.shared_bytes = static_cast<int>(geometry.shared_bytes);
        launch.cluster = static_cast<int>(geometry.cluster);
        static thread_local std::string fault;
        fault = run(launch, [&] { entry.call(arguments); });
        return fault.empty() ? nullptr : fault.c_str();
    }
    StreamHandle create_stream() override { return nullptr; }
    void destroy_stream(StreamHandle /*stream*/) noexcept override {}
    void synchronize(StreamHandle /*stream*/) override {}
    std::vector<double> time_ms(StreamHandle /*stream*/, int /*repetitions*/, const TimedWork& /*work*/) override {
        throw std::logic_error("the SIMT machine's time means nothing");
    }

  private:
    static void copy(void* destination, const void* source, std::size_t bytes) {
        if (bytes > 0) std::memcpy(destination, source, bytes);
    }

    Target target_;
    std::shared_ptr<const LtLibrary> library_;
};

std::string read_file(const std::string& path) {
    std::ifstream file(path);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
}

std::string source_text(const std::vector<const Kernel*>& kernels, const Target& target, const Sabotage& sabotage) {
    std::string text = fmt::format("#define RJ_WARP_SIZE {}\n", target.warp_size);
    if (target.backend == Backend::kHip) text += "#define RJ_SIMT_MATH\n";
    text += read_file(ROWJIT_SIMT_PRELUDE);  // in the place of the vendor's half
    const std::vector<std::string_view> parts = gpu_prelude_parts(target);
    for (std::size_t i = 1; i < parts.size(); ++i) text.append(parts[i]).append("\n");
    text += read_file(ROWJIT_SIMT_PRODUCT);
    text.append(embedded::prelude_order).append("\n");
    for (std::size_t i = 0; i < kernels.size(); ++i) {
        Kernel kernel = *kernels[i];
        // Nothing is computed otherwise than without.
        if (loads_may_wait(kernel, target)) kernel.loads_together = LoadsTogether::kAllAndNumbers;
        if (target.backend == Backend::kCuda && kernel.schedule.family == Family::kElementwise)
            kernel.loads_together = LoadsTogether::kAll;
        std::string body = emit_gpu_body(kernel, target);
        if (sabotage) body = sabotage(std::move(body));
        text += fmt::format(
            "namespace k{0} {{\n{1}\n}}\nextern \"C\" void rj_simt_entry_{0}(void** arguments) {{ "
            "rj_simt_call(k{0}::{2}, arguments); }}\n",
            i, body, kernels[i]->name);
    }
    return text;
}

// Compiles in a directory of its own, which goes when the object is loaded.
std::shared_ptr<Library> compile(const std::vector<const Kernel*>& kernels, const Target& target,
                                 const Sabotage& sabotage) {
    std::string pattern = (std::filesystem::temp_directory_path() / "rowjit-simt-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no temporary directory");
    const std::filesystem::path directory = pattern;
    std::ofstream(directory / "kernels.cpp") << source_text(kernels, target, sabotage);
    const std::string command =
        fmt::format("{} -std=c++17 -O1 -w -fPIC -shared -ffp-contract=off {} -o {}/kernels.so {}/kernels.cpp 2> {}/log",
                    ROWJIT_SIMT_CXX, ROWJIT_SIMT_FLAGS, pattern, pattern, pattern);
    const bool compiled = std::system(command.c_str()) == 0;
    std::shared_ptr<Library> library;
    const std::string log = read_file((directory / "log").string());
    if (compiled) library = std::make_shared<Library>((directory / "kernels.so").string(), kernels);
    std::filesystem::remove_all(directory);
    if (!compiled) throw std::runtime_error(log);
    return library;
}

}  // namespace

Target target(std::string_view name) {
    Target target = find_target(name);
    target.sm_count = 1;
    return target;
}

Device device(const Target& target, std::shared_ptr<const LtLibrary> library) {
    return Device(std::make_shared<SimtDevice>(target, std::move(library)));
}

std::vector<Executable> build(std::vector<Program> programs, const Target& target, const Device& device,
                              const Sabotage& sabotage) {
    std::vector<const Kernel*> kernels;
    for (const Program& program : programs) {
        for (const Step& step : program.steps) kernels.push_back(&step.kernel);
    }
    const std::shared_ptr<Library> library = compile(kernels, target, sabotage);
    std::vector<Executable> executables;
    std::size_t next = 0;
    for (Program& program : programs) {
        std::vector<LoadedStep> loaded;
        for (std::size_t i = 0; i < program.steps.size(); ++i)
            loaded.push_back({library, library->functions()[next++]});
        executables.emplace_back(std::make_shared<LaunchPlan>(std::move(program), std::move(loaded), device.shared()));
    }
    return executables;
}

}  // namespace rowjit::simt
