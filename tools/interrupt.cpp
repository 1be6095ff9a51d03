#include "tools/interrupt.h"

#include <unistd.h>
#include <csignal>
#include <string_view>

#include "tools/commands.h"

namespace rowjit {
namespace {

volatile std::sig_atomic_t asked = 0;

// All that a signal's handler may do to say something.
void say(std::string_view message) {
    [[maybe_unused]] const auto written = write(STDERR_FILENO, message.data(), message.size());
}

extern "C" void end_at_once(int /*signal*/) {
    say("\nrowjit: interrupted; what was tuned and compiled is kept\n");
    _exit(kExitInterrupted);
}

extern "C" void ask_to_stop(int /*signal*/) {
    if (asked != 0) end_at_once(0);
    asked = 1;
    say("\nrowjit: interrupted; ends after this job, and at once if interrupted again\n");
}

}  // namespace

void end_on_interrupt() { std::signal(SIGINT, end_at_once); }

StopAfterJob::StopAfterJob() {
    asked = 0;
    std::signal(SIGINT, ask_to_stop);
    std::signal(SIGTERM, ask_to_stop);
}

StopAfterJob::~StopAfterJob() {
    end_on_interrupt();
    std::signal(SIGTERM, SIG_DFL);
}

bool StopAfterJob::is_asked() const { return asked != 0; }

}  // namespace rowjit
