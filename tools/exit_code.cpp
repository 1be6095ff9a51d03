// Which exit code a failure ends the command with; docs/command-line.md lists them for scripts.
#include "tools/commands.h"

namespace rowjit {

int exit_code(ErrorCode code) {
    switch (code) {
        case ErrorCode::kInvalidGraph:
        case ErrorCode::kInvalidArgument:
        case ErrorCode::kParse:
        case ErrorCode::kUnsupported: return kExitUsage;
        case ErrorCode::kMiss: return kExitMiss;
        case ErrorCode::kEnvironment:
        case ErrorCode::kLaunch: return kExitEnvironment;
        case ErrorCode::kTimeout: return kExitTimeout;
        case ErrorCode::kIo: return kExitIo;
        case ErrorCode::kCompile: return kExitInternal;  // a toolchain refused what we emitted
    }
    return kExitInternal;
}

}  // namespace rowjit
