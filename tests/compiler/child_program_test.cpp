#include "compiler/toolchain/child_program.h"

#include <doctest/doctest.h>

#include <csignal>
#include <fstream>

namespace rowjit {
namespace {

constexpr std::chrono::seconds kLimit{60};

}  // namespace

TEST_CASE("a program's output, both streams, and success come back") {
    const PrivateFolder folder;
    const ProgramResult result = run_program({"/bin/sh", "-c", "echo one; echo two >&2"}, folder, kLimit);
    CHECK(result.succeeded);
    CHECK(result.output == "one\ntwo\n");
}

TEST_CASE("arguments reach the program as they are, with no shell between") {
    const PrivateFolder folder;
    CHECK(run_program({"/bin/echo", "a b; $HOME `id`"}, folder, kLimit).output == "a b; $HOME `id`\n");
}

TEST_CASE("a failing, a dying and an absent program are told apart") {
    const PrivateFolder folder;
    const ProgramResult failing = run_program({"/bin/sh", "-c", "exit 3"}, folder, kLimit);
    CHECK_FALSE(failing.succeeded);
    CHECK(failing.exited);
    CHECK(failing.how == "exit status 3");
    const ProgramResult dying = run_program({"/bin/sh", "-c", "kill -9 $$"}, folder, kLimit);
    CHECK_FALSE(dying.exited);
    CHECK(dying.how.starts_with("signal 9"));
    const ProgramResult absent = run_program({"/absent/program"}, folder, kLimit);
    CHECK_FALSE(absent.exited);
    CHECK(absent.how.starts_with("could not be started"));
}

TEST_CASE("a program that does not end is stopped with what it started, and what it had said comes back") {
    const PrivateFolder folder;
    // The grandchild holds the lock for as long as it lives.
    const std::string lock = (folder.path() / "lock").string();
    const std::string script = "echo begun; flock -x '" + lock + "' sleep 600";
    const ProgramResult result = run_program({"/bin/sh", "-c", script}, folder, std::chrono::seconds(1));
    CHECK(result.stopped);
    CHECK_FALSE(result.succeeded);
    CHECK_FALSE(result.exited);
    CHECK(result.how == "it had not ended after 1 s and was stopped");
    CHECK(result.output == "begun\n");
    CHECK(run_program({"/bin/sh", "-c", "flock -w 10 '" + lock + "' true"}, folder, kLimit).succeeded);
}

TEST_CASE("a program that is told much and says much is heard whole, its errors apart") {
    const std::string much(1 << 20, 'x');
    std::size_t heard = 0;
    const ProgramResult result = converse({"/bin/sh", "-c", "cat; echo end; echo wrong >&2"},
                                          {much, kLimit, [&](std::string_view bytes) { heard += bytes.size(); }});
    CHECK(result.succeeded);
    CHECK(result.output == much + "end\n");
    CHECK(heard == result.output.size());
    CHECK(result.errors == "wrong\n");
}

TEST_CASE("a program that dies before it has listened is no signal to this process") {
    const std::string much(1 << 20, 'x');
    const ProgramResult result = converse({"/bin/sh", "-c", "kill -9 $$"}, {much, kLimit, {}});
    CHECK(result.died);
    CHECK(result.how.starts_with("signal 9"));
    CHECK(converse({"/absent/program"}, {much, kLimit, {}}).how.starts_with("could not be started"));
}

TEST_CASE("a program is stopped when it falls silent, not when it takes long") {
    const std::chrono::milliseconds silence{1500};
    const ProgramResult slow =
        converse({"/bin/sh", "-c", "for i in 1 2 3 4; do echo $i; sleep 0.5; done"}, {"", silence, {}});
    CHECK(slow.succeeded);
    const ProgramResult silent = converse({"/bin/sh", "-c", "echo begun; sleep 600"}, {"", silence, {}});
    CHECK(silent.stopped);
    CHECK(silent.output == "begun\n");
    CHECK(silent.how == "it said nothing for 1500 ms and was stopped");
}

TEST_CASE("a process that ignores its children's ends is told why the status is unknown") {
    const PrivateFolder folder;
    const auto before = std::signal(SIGCHLD, SIG_IGN);
    const ProgramResult result = run_program({"/bin/true"}, folder, kLimit);
    std::signal(SIGCHLD, before);
    CHECK_FALSE(result.succeeded);
    CHECK(result.how.starts_with("its exit status was taken"));
}

TEST_CASE("the program's temporary files go to the private folder, which is removed with them") {
    std::filesystem::path path;
    {
        const PrivateFolder folder;
        path = folder.path();
        CHECK((std::filesystem::status(path).permissions() & std::filesystem::perms::mask) ==
              std::filesystem::perms::owner_all);
        CHECK(run_program({"/bin/sh", "-c", "echo x >\"$TMPDIR/left\""}, folder, kLimit).succeeded);
        CHECK(std::filesystem::exists(path / "left"));
    }
    CHECK_FALSE(std::filesystem::exists(path));
}

TEST_CASE("a program is found on PATH by name, and a file that cannot be run is not one") {
    CHECK(find_program("sh").ends_with("/sh"));
    CHECK(find_program("/bin/sh") == "/bin/sh");
    CHECK(find_program("no-such-program").empty());
    const PrivateFolder folder;
    const std::filesystem::path plain = folder.path() / "plain";
    std::ofstream(plain) << "text";
    CHECK(find_program(plain.string()).empty());
}

}  // namespace rowjit
