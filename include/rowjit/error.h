// The one exception a user of rowjit has to know.
//
// Failures come in three kinds. `Error` is the world's fault (bad input, a missing driver, a full disk): its message
// names the op, the offending values and the remedy. `InternalError` (base/check.h) is ours. A schedule that does not
// apply is neither: it returns `Declined` (base/declined.h).
#pragma once

#include <stdexcept>
#include <string>

namespace rowjit {

enum class ErrorCode {
    kInvalidGraph,     // shapes, dtypes or axes that do not fit; raised by the line that made the node
    kInvalidArgument,  // a launch or option argument that does not fit the compiled kernel
    kParse,            // a .rj file, a model configuration or an environment variable that cannot be read
    kUnsupported,      // well-formed, but not available for this target, toolchain or version
    kEnvironment,      // a device, driver, toolkit or compiler that is absent or too old
    kCompile,          // a toolchain refused source that rowjit emitted
    kLaunch,           // the driver refused a launch
    kIo,               // a file or directory that cannot be read or written
    kMiss,             // strict look-up found nothing (a pinned tuning choice, a bundle-only engine)
    kTimeout,          // a bounded wait ran out
};

// The code's name in messages and JSON, e.g. "invalid_graph".
const char* name(ErrorCode code);

class Error : public std::runtime_error {
  public:
    Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
    ErrorCode code() const { return code_; }

  private:
    ErrorCode code_;
};

}  // namespace rowjit
