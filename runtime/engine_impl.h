// The engine's parts, as the tuner and the command line use them: programs with schedules of their own choosing.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "base/fork_mutex.h"
#include "cache/kernel_cache.h"
#include "compiler/compile.h"
#include "rowjit/engine.h"
#include "runtime/build.h"
#include "runtime/launch_plan.h"
#include "runtime/tuning.h"

namespace rowjit {

class Engine::Impl {
  public:
    Impl(Device device, EngineOptions options);

    const Device& device() const { return device_; }
    const Target& target() const { return device_.impl().target(); }
    KernelCache& cache() { return *cache_; }
    const TuningDb& tuning() const { return *choices_.database; }
    ScheduleChoice choice() const;
    const EngineOptions& options() const { return options_; }

    BuiltProgram build(const GraphData& graph, const ChunkOptions& chunks = {});  // what compile() loads
    Executable compile(const GraphData& graph, Stream stream = nullptr, const ChunkOptions& chunks = {});

    // A program compiled elsewhere made ready to launch: built through the cache where it is not yet, loaded, each
    // module once per engine. Throws Error(kLaunch) when `stream` is being captured and a module is not loaded yet.
    Executable load(Program program, Stream stream = nullptr);
    Executable load(BuiltProgram built, Stream stream = nullptr);

    EngineStatistics statistics() const;

  private:
    LoadedStep load_step(const Step& step, const BuiltKernel& built, Stream stream);

    Device device_;
    EngineOptions options_;
    std::unique_ptr<KernelCache> cache_;
    ChoiceSources choices_;
    ForkMutex mutex_;  // guards what follows
    std::unordered_map<Digest, std::shared_ptr<Module>> modules_;
};

}  // namespace rowjit
