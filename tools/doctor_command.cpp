// `rowjit doctor`: what this machine has, what it lacks, and how to mend it. Nothing missing here is fatal to what does
// not need it, so the exit code is 0 unless the environment itself is wrong.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/environment.h"
#include "cache/bundle.h"
#include "cache/tuning_db.h"
#include "compiler/toolchain/orc.h"
#include "compiler/toolchain/toolchain.h"
#include "runtime/choice_table.h"
#include "runtime/device.h"
#include "runtime/gemm/cpu.h"
#include "runtime/tuning.h"
#include "tools/commands.h"
#include "tools/engine_options.h"
#include "tools/report.h"
#include "tools/version.h"

namespace rowjit {
namespace {

nlohmann::json devices() {
    nlohmann::json json = nlohmann::json::array();
    for (const std::string name : {"cuda:0", "hip:0", "cpu"}) {
        try {
            json.push_back({{"device", name}, {"found", true}, {"what", open_device(name)->description()}});
        } catch (const Error& error) {
            json.push_back({{"device", name}, {"found", false}, {"what", error.what()}});
        }
    }
    return json;
}

nlohmann::json toolchains() {
    nlohmann::json json = nlohmann::json::array();
    for (const Target& target : all_targets()) {
        if (!target.is_gpu()) continue;
        const auto toolchain = find_toolchain(target);
        json.push_back(
            {{"target", target.name},
             {"found", static_cast<bool>(toolchain)},
             {"what", toolchain ? fmt::format("{} {} ({})", toolchain->name, toolchain->version, toolchain->location)
                                : toolchain.reason()}});
    }
    json.push_back({{"target", "cpu"},
                    {"found", has_cpu_toolchain()},
                    {"what", has_cpu_toolchain() ? cpu_toolchain_version()
                                                 : "this build has no LLVM; install llvm-19-dev and build again"}});
    return json;
}

nlohmann::json cpu_products() {
    nlohmann::json json = nlohmann::json::array();
    for (const CpuGemmLibrary& library : cpu_gemm_libraries())
        json.push_back({{"operands", library.operands}, {"found", library.found}, {"what", library.what}});
    return json;
}

nlohmann::json shipped_tuning() {
    nlohmann::json json = nlohmann::json::array();
    for (const ChoiceTable& table : shipped_choices()) {
        json.push_back({{"target", table.architecture},
                        {"devices", table.devices},
                        {"choices", table.choices.size()},
                        {"toolchain", table.toolchain}});
    }
    return json;
}

// Records of `rowjit tune`, of all devices; none where the directory cannot be read, which its own row says.
std::size_t own_tuning(const std::string& root) try {
    return root.empty() ? 0 : TuningDb(root).list().size();
} catch (const Error&) {
    return 0;
}

nlohmann::json bundles(const CommonOptions& common) {
    nlohmann::json json = nlohmann::json::array();
    for (const std::string& path : bundle_paths(common.bundles)) {
        const Offer<std::shared_ptr<const Bundle>> bundle = Bundle::open(path);
        const std::string what =
            bundle ? fmt::format("{}: {} kernels, {} tuned", path, (*bundle)->kernel_count(), (*bundle)->record_count())
                   : bundle.reason();
        json.push_back({{"path", path}, {"found", static_cast<bool>(bundle)}, {"what", what}});
    }
    return json;
}

nlohmann::json environment(bool* wrong) {
    nlohmann::json json = nlohmann::json::array();
    for (const EnvironmentReport& row : environment_report()) {
        *wrong = *wrong || !row.problem.empty();
        json.push_back({{"name", row.name},
                        {"value", row.value ? nlohmann::json(*row.value) : nlohmann::json(nullptr)},
                        {"default", row.default_text},
                        {"meaning", row.meaning},
                        {"problem", row.problem}});
    }
    for (const std::string& name : unknown_environment_names()) {
        json.push_back(
            {{"name", name}, {"value", ""}, {"default", ""}, {"meaning", ""}, {"problem", "unknown: misspelt?"}});
    }
    return json;
}

std::string mark(const nlohmann::json& row) { return row["found"].get<bool>() ? "found" : "absent"; }

}  // namespace

int doctor_command(const CommonOptions& common) {
    bool wrong = false;
    const nlohmann::json document = {
        {"rowjit", kVersion},
        {"devices", devices()},
        {"toolchains", toolchains()},
        {"cpu_products", cpu_products()},
        {"cache_directory", cache_root(common)},
        {"bundles", bundles(common)},
        {"tuning", {{"own", own_tuning(cache_root(common))}, {"shipped", shipped_tuning()}}},
        {"environment", environment(&wrong)}};
    if (common.json) {
        fmt::print("{}\n", document.dump(2));
        return wrong ? kExitFindings : kExitOk;
    }
    Table found({"what", "", "details"});
    for (const auto& row : document["devices"]) found.add({row["device"], mark(row), row["what"]});
    for (const auto& row : document["toolchains"])
        found.add({row["target"], mark(row), one_line(row["what"].get<std::string>())});
    for (const auto& row : document["cpu_products"]) {
        found.add({"cpu", mark(row),
                   fmt::format("products of {}: {}", row["operands"].get<std::string>(),
                               one_line(row["what"].get<std::string>()))});
    }
    const std::string root = document["cache_directory"];
    found.add({"cache", root.empty() ? "off" : "found", root});
    for (const auto& row : document["bundles"]) found.add({"bundle", mark(row), row["what"]});
    const nlohmann::json& tuning = document["tuning"];
    found.add({"tuning", tuning["own"] == 0 ? "absent" : "found",
               fmt::format("{} kernels tuned here; `rowjit tune` adds more", tuning["own"].get<std::size_t>())});
    for (const auto& row : tuning["shipped"]) {
        found.add({"tuning", "found",
                   fmt::format("{} choices for {} come with rowjit", row["choices"].get<std::size_t>(),
                               fmt::join(row["devices"].get<std::vector<std::string>>(), ", "))});
    }
    fmt::print("rowjit {}\n\n{}\n", kVersion, found.text());
    Table variables({"variable", "value", "meaning"});
    for (const auto& row : document["environment"]) {
        const std::string value = row["value"].is_null() ? fmt::format("[{}]", row["default"].get<std::string>())
                                                         : row["value"].get<std::string>();
        const std::string problem = row["problem"];
        variables.add({row["name"], value, problem.empty() ? row["meaning"].get<std::string>() : "WRONG: " + problem});
    }
    fmt::print("{}", variables.text());
    return wrong ? kExitFindings : kExitOk;
}

}  // namespace rowjit
