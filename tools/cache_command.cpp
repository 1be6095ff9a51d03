// `rowjit cache`: what is stored, and tidying it.
#include <fmt/format.h>

#include "base/fail.h"
#include "cache/store.h"
#include "cache/tuning_db.h"
#include "tools/commands.h"
#include "tools/engine_options.h"
#include "tools/report.h"

namespace rowjit {
namespace {

int stats(const CommonOptions& common, const KernelStore& store) {
    const StoreSize size = store.size();
    const std::size_t tuned = TuningDb(store.root()).list().size();
    print_either(
        common.json,
        {{"directory", store.root()},
         {"kernels", size.files},
         {"bytes", size.bytes},
         {"tuned", tuned},
         {"quarantined", size.quarantined},
         {"temporaries", size.temporaries},
         {"foreign", size.foreign}},
        fmt::format("{}\n{} kernels, {:.1f} MB; {} tuned; {} in quarantine, {} temporaries, {} files not ours\n",
                    store.root(), size.files, static_cast<double>(size.bytes) / 1e6, tuned, size.quarantined,
                    size.temporaries, size.foreign));
    return kExitOk;
}

int list(const CommonOptions& common, const KernelStore& store) {
    nlohmann::json json = nlohmann::json::array();
    Table table({"digest", "bytes"});
    for (const StoredFile& file : store.list()) {
        json.push_back({{"digest", file.digest.hex()}, {"bytes", file.bytes}, {"used_s", file.used_s}});
        table.add({file.digest.hex(), std::to_string(file.bytes)});
    }
    print_either(common.json, json, table.text());
    return kExitOk;
}

int show(const CommonOptions& common, const KernelStore& store, const std::string& digest) {
    const Entry entry = store.show(digest);
    nlohmann::json json = {{"key", entry.key_text},
                           {"target", entry.artifact.target},
                           {"format", entry.artifact.format},
                           {"toolchain", entry.artifact.toolchain},
                           {"bytes", entry.artifact.binary.size()},
                           {"compile_ms", entry.artifact.compile_ms},
                           {"functions", nlohmann::json::array()}};
    std::string text = fmt::format("{}\n{} for {} by {}, {} bytes, compiled in {:.0f} ms\n", entry.key_text,
                                   entry.artifact.format, entry.artifact.target, entry.artifact.toolchain,
                                   entry.artifact.binary.size(), entry.artifact.compile_ms);
    for (const FunctionInfo& function : entry.artifact.functions) {
        json["functions"].push_back(
            {{"name", function.name}, {"registers", function.registers}, {"spill_bytes", function.spill_bytes}});
        text += fmt::format("  {}: {} registers, {} bytes spilled\n", function.name, function.registers,
                            function.spill_bytes);
    }
    print_either(common.json, json, text);
    return kExitOk;
}

int verify(const CommonOptions& common, KernelStore& store) {
    const Verified result = store.verify();
    nlohmann::json json = {{"good", result.good}, {"bad", nlohmann::json::array()}};
    std::string text = fmt::format("{} good, {} set aside\n", result.good, result.bad.size());
    for (const auto& [digest, why] : result.bad) {
        json["bad"].push_back({{"digest", digest.hex()}, {"why", why}});
        text += fmt::format("  {}: {}\n", digest.hex(), why);
    }
    print_either(common.json, json, text);
    return result.bad.empty() ? kExitOk : kExitFindings;
}

int removed(const CommonOptions& common, const Removed& result, std::int64_t tuned) {
    print_either(
        common.json,
        {{"kernels", result.files},
         {"bytes", result.bytes},
         {"tuned", tuned},
         {"quarantined", result.quarantined},
         {"temporaries", result.temporaries}},
        fmt::format("removed {} kernels ({:.1f} MB), {} tuned, {} in quarantine, {} temporaries\n", result.files,
                    static_cast<double>(result.bytes) / 1e6, tuned, result.quarantined, result.temporaries));
    return kExitOk;
}

}  // namespace

int cache_command(const CommonOptions& common, const CacheCommand& command) {
    const std::string root = required_cache_root(common);
    KernelStore store(root);
    if (command.action == "stats") return stats(common, store);
    if (command.action == "ls") return list(common, store);
    if (command.action == "verify") return verify(common, store);
    if (command.action == "gc") return removed(common, store.collect(), 0);
    if (command.action == "clear") return removed(common, store.clear(), TuningDb(root).clear());
    if (command.digest.empty())
        fail(ErrorCode::kInvalidArgument, "cache show: give the first digits of a digest (see `rowjit cache ls`)");
    return show(common, store, command.digest);
}

}  // namespace rowjit
