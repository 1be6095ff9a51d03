// `rowjit bundle`: the cache's kernels and tuning results as one file, and back.
#include <fmt/format.h>

#include <algorithm>

#include "base/fail.h"
#include "cache/bundle.h"
#include "cache/store.h"
#include "tools/commands.h"
#include "tools/engine_options.h"
#include "tools/file.h"
#include "tools/report.h"

namespace rowjit {
namespace {

std::shared_ptr<const Bundle> open(const std::string& path) {
    Offer<std::shared_ptr<const Bundle>> bundle = Bundle::open(path);
    if (!bundle) fail(ErrorCode::kIo, "{}", bundle.reason());
    return std::move(*bundle);
}

// A device's fingerprint begins with its architecture (runtime/tuning.h).
std::string architecture_of(const TuningRecord& record) {
    return record.key.device.substr(0, record.key.device.find(' '));
}

bool is_wanted(const CommonOptions& common, const std::string& architecture) {
    return common.targets.empty() ||
           std::find(common.targets.begin(), common.targets.end(), architecture) != common.targets.end();
}

int export_cache(const CommonOptions& common, const std::string& path) {
    const KernelStore store(required_cache_root(common));
    BundleContents contents;
    for (const StoredFile& file : store.list()) {
        Entry entry = store.show(file.digest.hex());
        if (is_wanted(common, entry.artifact.target)) contents.kernels.push_back(std::move(entry));
    }
    for (TuningRecord& record : TuningDb(store.root()).list()) {
        if (is_wanted(common, architecture_of(record))) contents.records.push_back(std::move(record));
    }
    const std::size_t records = contents.records.size();
    const auto [kernels, bytes] = write_bundle(path, std::move(contents));
    print_either(
        common.json, {{"bundle", path}, {"kernels", kernels}, {"tuned", records}, {"bytes", bytes}},
        fmt::format("{}: {} kernels, {} tuned, {:.1f} MB\n", path, kernels, records, static_cast<double>(bytes) / 1e6));
    return kExitOk;
}

struct Counts {
    std::int64_t kernels = 0;
    std::int64_t tuned = 0;
    std::int64_t damaged = 0;
};

Counts import_kernels(const Bundle& bundle, KernelStore* store) {
    Counts counts;
    for (std::size_t i = 0; i < bundle.kernel_count(); ++i) {
        const Offer<Entry> entry = bundle.kernel_at(i);
        if (!entry) {
            ++counts.damaged;
        } else if (store->put(*entry)) {
            ++counts.kernels;
        } else {
            fail(ErrorCode::kIo, "'{}' cannot be written; the warning above says why", store->root());
        }
    }
    return counts;
}

// Of two records of one computation on one kind of device the one that gained more over the static rule's choice,
// which was timed beside it: clocks differ from machine to machine, and so do times.
bool gained_more(const TuningRecord& record, const TuningRecord& than) {
    const auto share = [](const TuningRecord& r) {
        return r.choice.empty() || r.baseline_ms <= 0 ? 2.0 : r.median_ms / r.baseline_ms;
    };
    return share(record) < share(than);
}

Counts import_records(const Bundle& bundle, const TuningDb& database) {
    Counts counts;
    for (std::size_t i = 0; i < bundle.record_count(); ++i) {
        const Offer<TuningRecord> record = bundle.record_at(i);
        if (!record) {
            ++counts.damaged;
            continue;
        }
        const std::optional<TuningRecord> held = database.get(record->key);
        if (held && !gained_more(*record, *held)) continue;
        if (!database.put(*record)) fail(ErrorCode::kIo, "the tuning results cannot be written; the warning says why");
        ++counts.tuned;
    }
    return counts;
}

int report_imported(const CommonOptions& common, const std::string& root, const Counts& counts) {
    print_either(
        common.json,
        {{"directory", root}, {"kernels", counts.kernels}, {"tuned", counts.tuned}, {"damaged", counts.damaged}},
        fmt::format("{}: {} kernels, {} tuned; {} damaged and left out\n", root, counts.kernels, counts.tuned,
                    counts.damaged));
    return counts.damaged == 0 ? kExitOk : kExitFindings;
}

int import(const CommonOptions& common, const std::vector<std::string>& paths, bool kernels_too) {
    const std::string root = required_cache_root(common);
    KernelStore store(root);
    const TuningDb database(root);
    Counts all;
    for (const std::string& path : paths) {
        const auto bundle = open(path);
        const Counts kernels = kernels_too ? import_kernels(*bundle, &store) : Counts{};
        const Counts records = import_records(*bundle, database);
        all.kernels += kernels.kernels;
        all.tuned += records.tuned;
        all.damaged += kernels.damaged + records.damaged;
    }
    return report_imported(common, root, all);
}

int list(const CommonOptions& common, const std::vector<std::string>& paths) {
    nlohmann::json document = nlohmann::json::array();
    Table table({"digest", "bytes", "target", "by", "kernel"});
    for (const std::string& path : paths) {
        const auto bundle = open(path);
        for (std::size_t i = 0; i < bundle->kernel_count(); ++i) {
            const Offer<Entry> entry = bundle->kernel_at(i);
            const std::string digest = bundle->kernel_digest(i).hex();
            const std::string name = entry ? entry->artifact.functions.front().name : "damaged: " + entry.reason();
            const std::string target = entry ? entry->artifact.target : "";
            const std::string by = entry ? entry->artifact.toolchain : "";
            document.push_back({{"digest", digest},
                                {"bytes", bundle->kernel_bytes(i)},
                                {"target", target},
                                {"toolchain", by},
                                {"kernel", name}});
            table.add({digest.substr(0, 16), std::to_string(bundle->kernel_bytes(i)), target, by, name});
        }
        for (std::size_t i = 0; i < bundle->record_count(); ++i) {
            const Offer<TuningRecord> record = bundle->record_at(i);
            const std::string device = record ? record->key.device : "";
            const std::string choice = record ? record->choice : "damaged: " + record.reason();
            document.push_back({{"device", device}, {"choice", choice}});
            table.add({"tuned", "", device, "", choice});
        }
    }
    print_either(common.json, document, table.text());
    return kExitOk;
}

int verify(const CommonOptions& common, const std::vector<std::string>& paths) {
    nlohmann::json document = {{"good", 0}, {"bad", nlohmann::json::array()}};
    std::int64_t good = 0;
    std::string text;
    const auto found = [&](const std::string& path, const std::string& what, const std::string& why) {
        document["bad"].push_back({{"bundle", path}, {"entry", what}, {"why", why}});
        text += fmt::format("  {} {}: {}\n", path, what, why);
    };
    for (const std::string& path : paths) {
        const auto bundle = open(path);
        for (std::size_t i = 0; i < bundle->kernel_count(); ++i) {
            const Offer<Entry> entry = bundle->kernel_at(i);
            entry ? void(++good) : found(path, bundle->kernel_digest(i).hex(), entry.reason());
        }
        for (std::size_t i = 0; i < bundle->record_count(); ++i) {
            const Offer<TuningRecord> record = bundle->record_at(i);
            record ? void(++good) : found(path, fmt::format("tuning result {}", i), record.reason());
        }
    }
    document["good"] = good;
    const std::size_t bad = document["bad"].size();
    print_either(common.json, document, fmt::format("{} good, {} damaged\n{}", good, bad, text));
    return bad == 0 ? kExitOk : kExitFindings;
}

}  // namespace

int bundle_command(const CommonOptions& common, const BundleCommand& command) {
    if (command.action == "export") {
        if (command.files.size() != 1)
            fail(ErrorCode::kInvalidArgument, "bundle export: give one file to write, not {}", command.files.size());
        return export_cache(common, command.files[0]);
    }
    if (command.files.empty()) fail(ErrorCode::kInvalidArgument, "bundle {}: give at least one bundle", command.action);
    if (command.action == "import") return import(common, command.files, true);
    if (command.action == "ls") return list(common, command.files);
    return verify(common, command.files);
}

int merge_tuning(const CommonOptions& common, const std::vector<std::string>& bundles) {
    if (bundles.empty()) fail(ErrorCode::kInvalidArgument, "tune merge: give at least one bundle");
    return import(common, bundles, false);
}

}  // namespace rowjit
