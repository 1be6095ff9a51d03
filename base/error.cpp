#include "rowjit/error.h"

#include "base/check.h"

namespace rowjit {

const char* name(ErrorCode code) {
    switch (code) {
        case ErrorCode::kInvalidGraph: return "invalid_graph";
        case ErrorCode::kInvalidArgument: return "invalid_argument";
        case ErrorCode::kParse: return "parse";
        case ErrorCode::kUnsupported: return "unsupported";
        case ErrorCode::kEnvironment: return "environment";
        case ErrorCode::kCompile: return "compile";
        case ErrorCode::kLaunch: return "launch";
        case ErrorCode::kIo: return "io";
        case ErrorCode::kMiss: return "miss";
        case ErrorCode::kTimeout: return "timeout";
    }
    return "unknown";
}

void check_failed(const char* file, int line, const char* condition, const std::string& detail) {
    throw InternalError(
        fmt::format("internal check failed at {}:{}: {} ({}); please report this with the graph that caused it", file,
                    line, condition, detail));
}

}  // namespace rowjit
