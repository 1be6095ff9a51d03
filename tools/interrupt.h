// What an interrupt (Ctrl-C, or the SIGTERM of a time limit) does to a command: it ends, and loses nothing it has.
#pragma once

namespace rowjit {

// From here on an interrupt ends the process at once, with kExitInterrupted: what is tuned and compiled is stored as
// soon as it is there.
void end_on_interrupt();

// While it lives, the first interrupt only asks to stop, so that a command that goes through jobs says what it has
// measured when the job at hand is done; another one ends the process at once. One at a time.
class StopAfterJob {
  public:
    StopAfterJob();
    ~StopAfterJob();
    StopAfterJob(const StopAfterJob&) = delete;
    StopAfterJob& operator=(const StopAfterJob&) = delete;

    bool is_asked() const;
};

}  // namespace rowjit
