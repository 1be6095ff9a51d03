// The whole program once: graph → compiler → cache or toolchain → device → launch plan.
#include "rowjit/engine.h"

#include "base/environment.h"
#include "runtime/engine_impl.h"

namespace rowjit {
namespace {

std::string cache_root(const EngineOptions& options) {
    if (options.cache_directory.empty()) return default_cache_directory();
    return options.cache_directory == "off" ? "" : options.cache_directory;
}

}  // namespace

Device Device::best() { return Device(available_devices().front()); }
Device::Device(std::string_view name) : impl_(open_device(std::string(name))) {}
std::string Device::description() const { return impl_->description(); }
std::string Device::target() const { return impl_->target().name; }
void* Device::allocate(std::size_t bytes) const { return impl_->allocate(bytes); }
void Device::release(void* address) const { impl_->release(address); }

void Device::copy_to_device(void* destination, const void* source, std::size_t bytes) const {
    impl_->copy_to_device(destination, source, bytes);
}

void Device::copy_to_host(void* destination, const void* source, std::size_t bytes) const {
    impl_->copy_to_host(destination, source, bytes);
}

Stream Device::create_stream() const { return impl_->create_stream(); }
void Device::destroy_stream(Stream stream) const { impl_->destroy_stream(stream); }
void Device::synchronize(Stream stream) const { impl_->synchronize(stream); }

Engine::Impl::Impl(Device device, EngineOptions options)
    : device_(std::move(device)),
      options_(std::move(options)),
      choices_(choice_sources(cache_root(options_), options_.bundles)) {
    check_environment();
    cache_ = make_cache(cache_root(options_), choices_.bundles);
}

ScheduleChoice Engine::Impl::choice() const {
    return options_.use_tuning ? tuned_choice(choices_, target()) : ScheduleChoice();
}

BuiltProgram Engine::Impl::build(const GraphData& graph, const ChunkOptions& chunks) {
    return build_without_spills(graph, target(), choice(), *cache_, chunks);
}

Executable Engine::Impl::compile(const GraphData& graph, Stream stream, const ChunkOptions& chunks) {
    return load(build(graph, chunks), stream);
}

Executable Engine::Impl::load(Program program, Stream stream) {
    return load(build_program(std::move(program), target(), *cache_), stream);
}

Executable Engine::Impl::load(BuiltProgram built, Stream stream) {
    std::vector<LoadedStep> loaded;
    for (std::size_t i = 0; i < built.kernels.size(); ++i)
        loaded.push_back(load_step(built.program.steps[i], built.kernels[i], stream));
    return Executable(
        std::make_shared<LaunchPlan>(std::move(built.program), std::move(loaded), device_.shared(), stream));
}

LoadedStep Engine::Impl::load_step(const Step& step, const BuiltKernel& built, Stream stream) {
    const std::scoped_lock lock(mutex_);
    std::shared_ptr<Module>& module = modules_[built.key.digest()];
    if (module == nullptr) {
        try {
            module = device_.impl().load(*built.artifact, stream);
        } catch (const Error& error) {
            if (!built.from_cache || error.code() != ErrorCode::kEnvironment) throw;
            // What was stored in good order but the driver refuses is compiled once more, for this driver.
            cache_->reject(built.key, error.what());
            module = device_.impl().load(*rowjit::build(step.kernel, target(), *cache_).artifact, stream);
        }
    }
    return {module, module->functions().front(), built.artifact->functions.front().registers};
}

EngineStatistics Engine::Impl::statistics() const {
    const CacheStatistics cache = cache_->statistics();
    return {cache.compiled, cache.memory_hits, cache.disk_hits, cache.bundle_hits, cache.compile_ms};
}

Engine::Engine(Device device, EngineOptions options)
    : impl_(std::make_unique<Impl>(std::move(device), std::move(options))) {}
Engine::~Engine() = default;
Engine::Engine(Engine&&) noexcept = default;
Engine& Engine::operator=(Engine&&) noexcept = default;
Executable Engine::compile(const Graph& graph, Stream stream, const ChunkOptions& chunks) {
    return impl_->compile(*graph.data(), stream, chunks);
}
const Device& Engine::device() const { return impl_->device(); }
EngineStatistics Engine::statistics() const { return impl_->statistics(); }

}  // namespace rowjit
