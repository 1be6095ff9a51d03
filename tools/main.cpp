// The `rowjit` command: options in, exit code out. What each command does is in a file of its own.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <new>
#include <system_error>

#include "base/check.h"
#include "base/environment.h"
#include "rowjit/error.h"
#include "tools/commands.h"
#include "tools/completion.h"
#include "tools/interrupt.h"
#include "tools/report.h"
#include "tools/version.h"

namespace rowjit {
namespace {

// A count, refused in words of its own: CLI11's prints the bounds of the type.
const CLI::Validator kPositive(
    [](std::string& word) {
        std::int64_t value = 0;
        const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
        const bool good = error == std::errc() && end == word.data() + word.size() && value > 0;
        return good ? std::string() : fmt::format("'{}' is not a positive whole number", word);
    },
    "COUNT");

// One line, like every other failure.
int refuse_usage(const CLI::App& app, const CLI::ParseError& error) {
    const std::vector<std::string> unknown = app.remaining();
    std::string what = error.what();
    if (!unknown.empty()) what = fmt::format("'{}' is no command or option", unknown.front());
    fmt::print(stderr, "rowjit: {}; see `rowjit --help` and `rowjit COMMAND --help`\n", what);
    return kExitUsage;
}

void add_job_options(CLI::App* command, CommonOptions* common) {
    JobOptions& jobs = common->jobs;
    command->add_option("--model", jobs.model, "A Hugging Face config.json: every kernel that model needs")
        ->type_name("FILE");
    command->add_option("--graph", jobs.graph, "A graph in text form (docs/text-form.md)")->type_name("FILE.rj");
    command->add_option("--op", jobs.ops, "Operations of `rowjit ops`, or all")->delimiter(',')->type_name("NAME");
    command->add_option("--columns", jobs.columns, "Row widths, with --op [what models have]")->delimiter(',');
    command->add_option("--dtype", jobs.dtypes, "bf16, f16, f32, f64, with --op [bf16]")->delimiter(',');
    command->add_option("--option", jobs.options, "An option of the one op, as name=value; may be repeated")
        ->type_name("NAME=VALUE");
    command->add_flag("--backward", jobs.backward,
                      "Of each graph its backward, for the gradients of what training differentiates");
    command->add_flag("--joint", jobs.joint,
                      "Of each graph its outputs and, for cotangents of 1, those gradients in one pass");
    command->add_option("--tokens", jobs.tokens, "Rows of a launch [2048 on the CPU, 16384 on a GPU]")
        ->check(kPositive);
    command
        ->add_option("--rows", jobs.rows,
                     "Rows of one row axis, as name=count; may be repeated. The others have --tokens, and are what "
                     "--max-bytes makes fewer")
        ->type_name("NAME=COUNT");
    command
        ->add_option(
            "--max-bytes", jobs.max_bytes,
            "Bytes a launch may move, an eighth of what it may hold; fewer rows are used beyond [128 MiB, 2 GiB]")
        ->check(kPositive);
}

// Of graphs with products that are made a chunk of rows at a time.
void add_chunk_options(CLI::App* command, CommonOptions* common) {
    ChunkOptions& chunks = common->jobs.chunks;
    command
        ->add_option("--workspace-limit", chunks.workspace_limit_bytes,
                     "Bytes that a launch's workspace shall stay below where that is possible")
        ->check(kPositive);
    command->add_option("--chunk-rows", chunks.chunk_rows, "Rows of a chunk of products [by a model of the device]")
        ->check(kPositive);
    command->add_flag(
        "--low-memory", chunks.low_memory,
        "Gradients of weights in parts of their columns, from products made once more: no f32 accumulator");
    command->add_option("--part-columns", chunks.part_columns, "Columns of such a part [by the model]")
        ->check(kPositive);
    command->add_flag("--round-each-chunk", chunks.round_each_chunk,
                      "Add gradients up in their own dtype, without f32 accumulators");
}

int run(int argc, char** argv) {
    CommonOptions common;
    TuneCommand tune;
    CompileCommand compile;
    VerifyCommand verify;
    CacheCommand cache;
    BundleCommand bundle;
    std::string shell;
    std::string op;
    int result = kExitOk;

    CLI::App app{"rowjit: a compiler and runtime for LLM row kernels", "rowjit"};
    app.set_version_flag("--version", std::string("rowjit ") + kVersion);
    app.require_subcommand(1);
    app.fallthrough();
    app.add_flag("--json", common.json, "One JSON document on standard output");
    app.add_option("--device", common.device, "cpu, cuda:N or hip:N [the best there is]");
    app.add_option("--cache-dir", common.cache_directory,
                   "Compiled kernels and tuning; off keeps nothing [ROWJIT_CACHE_DIR]");
    app.add_option("--bundle", common.bundles, "A bundle to look in first, before those of ROWJIT_BUNDLE_PATH")
        ->type_name("FILE.rjb");
    app.footer(
        "Exit codes: 0 ok, 1 findings, 2 usage, 3 miss, 4 partial, 5 environment, 6 timeout, 7 input/output, 70 "
        "internal, 130 interrupted.");

    CLI::App* c = app.add_subcommand("tune", "Find the fastest schedule of every kernel on this device, and keep it");
    c->add_option("action", tune.action,
                  "run; plan: compile the candidates for a --target into a bundle; merge: collect what bundles tuned")
        ->check(CLI::IsMember({"run", "plan", "merge"}))
        ->capture_default_str();
    c->add_option("bundles", tune.bundles, "run: plans made elsewhere; merge: what to collect from")
        ->type_name("FILE.rjb");
    c->add_option("--target", common.targets, "plan: for which targets [the device's]")->delimiter(',');
    c->add_option("--output", tune.output, "plan: the bundle to write")->type_name("FILE.rjb");
    add_job_options(c, &common);
    c->add_flag("--force", tune.force, "Measure again what is already tuned");
    c->add_option("--max-candidates", tune.max_candidates, "Schedules to try for a kernel")
        ->check(kPositive)
        ->capture_default_str();
    c->add_option("--time-limit", tune.time_limit_s, "Seconds after which a candidate that hangs is given up")
        ->check(kPositive)
        ->capture_default_str();
    c->add_flag("--in-process", tune.in_process,
                "Start no processes: a compiler or kernel that crashes or hangs ends the tuning");
    c->add_option("--export", tune.export_file, "Add what is faster than the static rules' choices to this table")
        ->type_name("FILE");
    c->callback([&] { result = tune_command(common, tune); });

    c = app.add_subcommand(kTuneWorker, "")->group("");  // not for people: what tune starts
    c->callback([&] { result = tune_worker_command(); });

    c = app.add_subcommand("compile", "Compile kernels for targets that need not be here");
    add_job_options(c, &common);
    c->add_option("--target", common.targets, "sm_80, sm_90a, gfx942, x86-64-v3, native, …")->delimiter(',');
    c->add_option("--output", compile.output, "Write files to this directory as well as to the cache")
        ->type_name("DIR");
    c->add_option("--emit", compile.emit, "What to write: code-object, source, json")
        ->delimiter(',')
        ->check(CLI::IsMember({"code-object", "source", "json"}));
    c->add_option("--write-bundle", compile.bundle, "Write what was compiled to this file as one bundle")
        ->type_name("FILE.rjb");
    c->callback([&] { result = compile_command(common, compile); });

    c = app.add_subcommand("bench", "Time kernels beside a copy of the same bytes");
    add_job_options(c, &common);
    add_chunk_options(c, &common);
    c->callback([&] { result = bench_command(common); });

    c = app.add_subcommand("verify", "Compare kernels with the oracle");
    add_job_options(c, &common);
    add_chunk_options(c, &common);
    c->add_flag("--all-schedules", verify.all_schedules, "Every legal schedule, not only the chosen one");
    c->add_option("--seed", verify.seed, "Of the random inputs, or of what --random draws")->capture_default_str();
    c->add_option("--random", verify.random,
                  "Draw so many jobs at random: operations, options, widths and dtypes, of those named or of all")
        ->type_name("N")
        ->check(kPositive);
    c->callback([&] { result = verify_command(common, verify); });

    c = app.add_subcommand("explain", "Show the plan, the schedules that declined and why, and the emitted source");
    add_job_options(c, &common);
    add_chunk_options(c, &common);
    c->add_option("--target", common.targets, "The target to explain for [the device's]")->delimiter(',');
    c->callback([&] { result = explain_command(common); });

    c = app.add_subcommand("ops", "List the operations, or one with its options");
    c->add_option("name", op, "An operation");
    c->callback([&] { result = ops_command(common, op); });

    c = app.add_subcommand("cache", "Look at and tidy the cache directory");
    c->add_option("action", cache.action, "stats, ls, show, verify, gc or clear")
        ->required()
        ->check(CLI::IsMember({"stats", "ls", "show", "verify", "gc", "clear"}));
    c->add_option("digest", cache.digest, "The first digits of a digest, for show");
    c->callback([&] { result = cache_command(common, cache); });

    c = app.add_subcommand("bundle", "Kernels and tuning results as one file, and back");
    c->add_option("action", bundle.action, "export, import, ls or verify")
        ->required()
        ->check(CLI::IsMember({"export", "import", "ls", "verify"}));
    c->add_option("files", bundle.files, "Bundles: the one to write, or those to read")->type_name("FILE.rjb");
    c->add_option("--target", common.targets, "export: of these alone")->delimiter(',');
    c->callback([&] { result = bundle_command(common, bundle); });

    c = app.add_subcommand("completion", "A shell's completion of this command line, as a script");
    c->add_option("shell", shell, "bash, zsh or fish")->required()->check(CLI::IsMember({"bash", "zsh", "fish"}));
    c->callback([&] { fmt::print("{}", completion_script(app, shell)); });

    c = app.add_subcommand("doctor", "Say what was found on this machine, what is missing and how to mend it");
    c->callback([&] { result = doctor_command(common); });

    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        return error.get_exit_code() == 0 ? app.exit(error) : refuse_usage(app, error);
    }
    return result;
}

int refuse_output(int error) {
    fmt::print(stderr, "rowjit: standard output cannot be written: {}; free space or direct it elsewhere\n",
               std::strerror(error));
    return kExitIo;
}

}  // namespace
}  // namespace rowjit

int main(int argc, char** argv) {
    rowjit::end_on_interrupt();
    // A limit on the size of files then fails the write like a full disk, whose file is taken away again, and does not
    // end the process in the middle of it.
    std::signal(SIGXFSZ, SIG_IGN);
    try {
        const int result = rowjit::run(argc, argv);
        return std::fflush(stdout) == 0 ? result : rowjit::refuse_output(errno);
    } catch (const std::system_error& error) {
        // fmt throws where what was printed before does not fit the buffer and a write fails.
        if (std::ferror(stdout) != 0) return rowjit::refuse_output(error.code().value());
        fmt::print(stderr, "rowjit: {}\n", error.what());
        return rowjit::kExitInternal;
    } catch (const rowjit::Error& error) {
        fmt::print(stderr, "rowjit: {}\n", rowjit::one_line(error.what()));
        return rowjit::exit_code(error.code());
    } catch (const std::bad_alloc&) {
        fmt::print(stderr, "rowjit: out of memory; give smaller --columns, --tokens or --max-bytes\n");
        return rowjit::kExitEnvironment;
    } catch (const std::exception& error) {
        fmt::print(stderr, "rowjit: {}\n", error.what());
        return rowjit::kExitInternal;
    }
}
