#include "runtime/gpu/device.h"

#include <map>
#include <mutex>
#include <utility>

#include "base/fail.h"
#include "runtime/gemm/gemm.h"
#include "runtime/gemm/lt.h"

namespace rowjit {
namespace {

using Context = GpuDriver::Context;

// A device's context, kept for as long as the device or one of its modules lives.
class RetainedContext {
  public:
    RetainedContext(std::shared_ptr<const GpuDriver> driver, int device, std::string description)
        : driver_(std::move(driver)), device_(device), description_(std::move(description)) {
        driver_->require(driver_->retain_context(&context_, device_), ErrorCode::kEnvironment,
                         description_ + " cannot be opened", "check that no other process uses it exclusively");
    }
    RetainedContext(const RetainedContext&) = delete;
    RetainedContext& operator=(const RetainedContext&) = delete;
    ~RetainedContext() { driver_->release_context(device_); }

    const GpuDriver& driver() const { return *driver_; }
    const std::string& description() const { return description_; }
    Context context() const { return context_; }

  private:
    std::shared_ptr<const GpuDriver> driver_;
    int device_;
    std::string description_;
    Context context_ = 0;
};

// Makes the device current in this thread. A thread that has another device current gets it back; one that has none
// keeps ours, so that its next launch finds it in place.
class CurrentContext {
  public:
    explicit CurrentContext(const RetainedContext& wanted) noexcept : driver_(wanted.driver()) {
        if (driver_.current_context(&previous_) != 0 || previous_ == wanted.context()) return;
        driver_.set_current_context(wanted.context());
        restore_ = !driver_.is_no_context(previous_);
    }
    CurrentContext(const CurrentContext&) = delete;
    CurrentContext& operator=(const CurrentContext&) = delete;
    ~CurrentContext() {
        if (restore_) driver_.set_current_context(previous_);
    }

  private:
    const GpuDriver& driver_;
    Context previous_ = 0;
    bool restore_ = false;
};

// Both vendors number these errors alike.
constexpr DriverResult kNotFound = 500;
bool is_capture_error(DriverResult result) { return result >= 900 && result <= 908; }

[[noreturn]] void fail_capturing(std::string_view what, const std::string& device) {
    fail(ErrorCode::kLaunch,
         "{} on {} while its stream is being captured; compile or warm the kernel (launch it once) before the capture "
         "begins",
         what, device);
}

class GpuModule final : public Module {
  public:
    GpuModule(std::shared_ptr<const RetainedContext> context, const Artifact& artifact, const Target& target)
        : context_(std::move(context)) {
        require_image(driver().load(&module_, artifact.binary.data()), artifact, target);
        try {
            find_functions(artifact, target);
        } catch (...) {
            driver().unload(module_);
            throw;
        }
    }
    GpuModule(const GpuModule&) = delete;
    GpuModule& operator=(const GpuModule&) = delete;
    ~GpuModule() override {
        const CurrentContext current(*context_);
        driver().unload(module_);
    }

    std::span<const Function> functions() const override { return functions_; }

  private:
    const GpuDriver& driver() const { return context_->driver(); }

    // The CUDA driver looks at an image only when a function is asked for, so a bad one may be found out in either
    // step.
    void require_image(DriverResult result, const Artifact& artifact, const Target& target) const {
        if (is_capture_error(result)) fail_capturing("a kernel cannot be loaded", context_->description());
        driver().require(result, ErrorCode::kEnvironment,
                         fmt::format("{} refuses the {} that {} compiled for {}", context_->description(),
                                     artifact.format, artifact.toolchain, artifact.target),
                         fmt::format("compile for {}, or install a driver no older than the compiler", target.name));
    }

    void find_functions(const Artifact& artifact, const Target& target) {
        functions_.reserve(artifact.functions.size());
        for (const FunctionInfo& info : artifact.functions) {
            Function& function = functions_.emplace_back();
            const DriverResult result = driver().find_function(&function.handle, module_, info.name.c_str());
            if (result != kNotFound) require_image(result, artifact, target);
            driver().require(
                result, ErrorCode::kEnvironment,
                fmt::format("the {} for {} has no function {}", artifact.format, artifact.target, info.name),
                "delete the cached entry and compile it again");
            driver().require(driver().lift_limits(function.handle, target), ErrorCode::kEnvironment,
                             fmt::format("{} cannot give {} {} bytes of shared memory", context_->description(),
                                         info.name, target.shared_bytes_per_block),
                             fmt::format("compile for {}", target.name));
        }
    }

    std::shared_ptr<const RetainedContext> context_;
    void* module_ = nullptr;
    std::vector<Function> functions_;
};

// The library's product with the device current.
class GpuGemm final : public Gemm {
  public:
    GpuGemm(std::shared_ptr<const RetainedContext> context, std::unique_ptr<Gemm> gemm)
        : context_(std::move(context)), gemm_(std::move(gemm)) {}
    GpuGemm(const GpuGemm&) = delete;
    GpuGemm& operator=(const GpuGemm&) = delete;
    ~GpuGemm() override {
        const CurrentContext current(*context_);
        gemm_.reset();
    }

    std::size_t workspace_bytes(const GemmShape& shape) const noexcept override {
        return gemm_->workspace_bytes(shape);
    }
    std::size_t warm_bytes() const noexcept override { return gemm_->warm_bytes(); }
    void warm(void* scratch, StreamHandle stream) const noexcept override { gemm_->warm(scratch, stream); }
    const char* queue(const GemmShape& shape, const GemmCall& call, StreamHandle stream) const noexcept override {
        const CurrentContext current(*context_);
        return gemm_->queue(shape, call, stream);
    }

  private:
    std::shared_ptr<const RetainedContext> context_;
    std::unique_ptr<Gemm> gemm_;
};

class GpuDevice final : public DeviceImpl {
  public:
    GpuDevice(std::shared_ptr<const RetainedContext> context, Target target)
        : context_(std::move(context)), target_(std::move(target)) {}
    GpuDevice(const GpuDevice&) = delete;
    GpuDevice& operator=(const GpuDevice&) = delete;
    ~GpuDevice() override {
        const CurrentContext current(*context_);
        for (void* event : events_) entries().event_destroy(event);
    }

    const Target& target() const override { return target_; }
    std::string description() const override { return context_->description(); }

    void* allocate(std::size_t bytes) override {
        if (bytes == 0) return nullptr;
        const CurrentContext current(*context_);
        void* address = nullptr;
        const DriverResult result = entries().allocate(&address, bytes);
        if (result == 0) return address;
        std::size_t free_bytes = 0;
        std::size_t total_bytes = 0;
        entries().memory_info(&free_bytes, &total_bytes);
        driver().require(result, ErrorCode::kEnvironment,
                         fmt::format("{}: cannot allocate {} bytes, {} of {} are free", description(), bytes,
                                     free_bytes, total_bytes),
                         "use fewer rows at a time, or free device memory");
        return nullptr;
    }

    void release(void* address) noexcept override {
        if (address == nullptr) return;
        const CurrentContext current(*context_);
        entries().release(address);
    }

    void copy_to_device(void* destination, const void* source, std::size_t bytes) override {
        if (bytes == 0) return;
        const CurrentContext current(*context_);
        require_copy(entries().copy_to_device(destination, source, bytes), "to the device", bytes);
        // From pageable memory the driver returns once the bytes are staged, which is before they have arrived.
        require_copy(entries().stream_synchronize(nullptr), "to the device", bytes);
    }

    void copy_to_host(void* destination, const void* source, std::size_t bytes) override {
        if (bytes == 0) return;
        const CurrentContext current(*context_);
        require_copy(entries().copy_to_host(destination, source, bytes), "to the host", bytes);
    }

    void copy_on_device(void* destination, const void* source, std::size_t bytes, StreamHandle stream) override {
        if (bytes == 0) return;
        const CurrentContext current(*context_);
        require_copy(entries().copy_on_device(destination, source, bytes, stream), "on the device", bytes);
    }

    void fill(void* destination, std::uint8_t byte, std::size_t bytes, StreamHandle stream) override {
        if (bytes == 0) return;
        const CurrentContext current(*context_);
        require_copy(entries().fill(destination, byte, bytes, stream), "of one value to the device", bytes);
    }

    std::unique_ptr<Module> load(const Artifact& artifact, StreamHandle stream) override {
        const CurrentContext current(*context_);
        require_no_capture(stream, "a kernel cannot be loaded");
        return std::make_unique<GpuModule>(context_, artifact, target_);
    }

    std::int64_t clusters_at_once(Function function, const LaunchGeometry& geometry) const override {
        if (geometry.cluster <= 1) return 0;
        const CurrentContext current(*context_);
        return driver().clusters_at_once(function.handle, geometry);
    }

    const char* map_matrix(const MatrixInMemory& matrix, TensorMap* map) const noexcept override {
        return driver().map_matrix(matrix, map);
    }

    // Made once for each type, so that a program compiled before is ready during a capture.
    std::shared_ptr<const Gemm> make_gemm(const GemmType& type, const GemmShape& typical,
                                          StreamHandle stream) override {
        const std::lock_guard<std::mutex> lock(opening_);
        std::shared_ptr<const Gemm>& made = gemms_[{type, typical}];
        if (made != nullptr) return made;
        const CurrentContext current(*context_);
        require_no_capture(stream, "a matrix product cannot be made");
        auto gemm = std::make_shared<const GpuGemm>(context_, make_lt_gemm(matrix_library(), type, typical));
        void* scratch = allocate(gemm->warm_bytes());
        gemm->warm(scratch, nullptr);
        synchronize(nullptr);
        release(scratch);
        return made = std::move(gemm);
    }

    const char* launch(Function function, const LaunchGeometry& geometry, StreamHandle stream,
                       void** arguments) noexcept override {
        if (geometry.grid == 0) return nullptr;
        const CurrentContext current(*context_);
        const bool extended = geometry.cluster > 1 || (geometry.overlaps && driver().overlaps_launches());
        const DriverResult result = extended ? driver().launch_extended(function.handle, geometry, stream, arguments)
                                             : entries().launch(function.handle, geometry.grid, 1, 1, geometry.block, 1,
                                                                1, geometry.shared_bytes, stream, arguments, nullptr);
        return result == 0 ? nullptr : driver().error_text(result);
    }

    // A stream that the synchronous copies wait for (flags 0), so that a copy to the host reads finished results.
    StreamHandle create_stream() override {
        const CurrentContext current(*context_);
        StreamHandle stream = nullptr;
        require_launch(entries().stream_create(&stream, 0), "creating a stream");
        return stream;
    }

    void destroy_stream(StreamHandle stream) noexcept override {
        const CurrentContext current(*context_);
        entries().stream_destroy(stream);
    }

    void synchronize(StreamHandle stream) override {
        const CurrentContext current(*context_);
        require_launch(entries().stream_synchronize(stream), "waiting for a stream");
    }

    std::vector<double> time_ms(StreamHandle stream, int repetitions, const TimedWork& work) override {
        const std::lock_guard<std::mutex> lock(timing_);
        const CurrentContext current(*context_);
        const auto pairs = static_cast<std::size_t>(repetitions);
        reserve_events(2 * pairs);
        for (std::size_t i = 0; i < pairs; ++i) {
            require_launch(entries().event_record(events_[2 * i], stream), "recording an event");
            work.queue(static_cast<int>(i));
            require_launch(entries().event_record(events_[2 * i + 1], stream), "recording an event");
        }
        require_launch(entries().stream_synchronize(stream), "waiting for timed work");
        std::vector<double> times_ms(pairs);
        for (std::size_t i = 0; i < pairs; ++i) {
            float ms = 0;
            require_launch(entries().event_elapsed_ms(&ms, events_[2 * i], events_[2 * i + 1]), "reading events");
            times_ms[i] = ms;
        }
        return times_ms;
    }

  private:
    const GpuDriver& driver() const { return context_->driver(); }
    const DriverEntries& entries() const { return context_->driver().entries(); }

    void require_copy(DriverResult result, const char* direction, std::size_t bytes) const {
        driver().require(result, ErrorCode::kLaunch,
                         fmt::format("{}: a copy of {} bytes {} failed", description(), bytes, direction),
                         "check the addresses; an earlier kernel's failure is also reported here");
    }

    void require_launch(DriverResult result, const char* what) const {
        driver().require(result, ErrorCode::kLaunch, fmt::format("{}: {} failed", description(), what),
                         "an earlier kernel's failure is also reported here; run under compute-sanitizer or rocgdb "
                         "to find it");
    }

    void require_no_capture(StreamHandle stream, std::string_view what) const {
        int capturing = 0;
        const DriverResult result = entries().stream_is_capturing(stream, &capturing);
        if (capturing != 0 || is_capture_error(result)) fail_capturing(what, description());
        require_launch(result, "asking whether a stream is being captured");
    }

    std::shared_ptr<const LtLibrary> matrix_library() {
        if (matrix_library_ == nullptr) {
            auto opened = open_lt(driver().backend());
            if (!opened)
                fail(ErrorCode::kEnvironment, "{} cannot multiply matrices: {}", description(), opened.reason());
            matrix_library_ = *opened;
        }
        return matrix_library_;
    }

    // Events are made before the first measurement and kept: making one between two repetitions would be timed.
    void reserve_events(std::size_t count) {
        while (events_.size() < count) {
            void* event = nullptr;
            require_launch(entries().event_create(&event, 0), "creating an event");
            events_.push_back(event);
        }
    }

    std::shared_ptr<const RetainedContext> context_;
    Target target_;
    // Guards events_; two measurements at once would also disturb each other. Not a ForkMutex: a driver's contexts do
    // not survive a fork, so a child has no use for it, and a fork should not wait for a measurement.
    std::mutex timing_;
    std::vector<void*> events_;
    std::mutex opening_;  // guards what follows; likewise
    std::shared_ptr<const LtLibrary> matrix_library_;
    std::map<std::pair<GemmType, GemmShape>, std::shared_ptr<const Gemm>> gemms_;
};

}  // namespace

std::shared_ptr<DeviceImpl> open_gpu(std::shared_ptr<const GpuDriver> driver, int device) {
    const std::string device_name = fmt::format("{}:{}", name(driver->backend()), device);
    const int count = driver->device_count();
    if (device < 0 || device >= count) {
        fail(ErrorCode::kEnvironment, "{} does not exist: {} reports {} device{}; use a number from 0 on", device_name,
             driver->path(), count, count == 1 ? "" : "s");
    }
    Target target = driver->describe(device);
    std::string description = fmt::format("{} {}, driver {}", device_name, target.label, driver->version());
    auto context = std::make_shared<const RetainedContext>(std::move(driver), device, std::move(description));
    return std::make_shared<GpuDevice>(std::move(context), std::move(target));
}

std::vector<int> usable_gpus(const GpuDriver& driver) {
    std::vector<int> usable;
    const int count = driver.device_count();
    for (int device = 0; device < count; ++device) {
        try {
            driver.describe(device);
            usable.push_back(device);
        } catch (const Error&) {
            continue;  // open_gpu tells whoever asks for this device why it is not listed
        }
    }
    return usable;
}

}  // namespace rowjit
