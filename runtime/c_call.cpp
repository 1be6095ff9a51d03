#include "runtime/c_call.h"

#include <new>
#include <string>

#include "base/check.h"

namespace rowjit {
namespace {

// Where memory for a message has run out, a literal stands in for it.
struct Failure {
    std::string text;
    const char* literal = "";
};

thread_local Failure failure;

}  // namespace

rowjit_status keep_failure(rowjit_status status, const char* message) noexcept {
    try {
        failure.text = message;
        failure.literal = nullptr;
    } catch (const std::bad_alloc&) {
        failure.literal = "memory ran out, also for the message";
    }
    return status;
}

const char* last_failure() noexcept { return failure.literal == nullptr ? failure.text.c_str() : failure.literal; }

rowjit_status status_of(ErrorCode code) {
    switch (code) {
        case ErrorCode::kInvalidGraph: return ROWJIT_INVALID_GRAPH;
        case ErrorCode::kInvalidArgument: return ROWJIT_INVALID_ARGUMENT;
        case ErrorCode::kParse: return ROWJIT_PARSE;
        case ErrorCode::kUnsupported: return ROWJIT_UNSUPPORTED;
        case ErrorCode::kEnvironment: return ROWJIT_ENVIRONMENT;
        case ErrorCode::kCompile: return ROWJIT_COMPILE;
        case ErrorCode::kLaunch: return ROWJIT_LAUNCH;
        case ErrorCode::kIo: return ROWJIT_IO;
        case ErrorCode::kMiss: return ROWJIT_MISS;
        case ErrorCode::kTimeout: return ROWJIT_TIMEOUT;
    }
    return ROWJIT_INTERNAL;
}

rowjit_status caught_status() noexcept {
    try {
        throw;
    } catch (const Error& error) {
        return keep_failure(status_of(error.code()), error.what());
    } catch (const std::bad_alloc&) {
        return keep_failure(ROWJIT_OUT_OF_MEMORY, "the host's memory ran out");
    } catch (const std::exception& error) {
        return keep_failure(ROWJIT_INTERNAL, error.what());
    } catch (...) {
        return keep_failure(ROWJIT_INTERNAL, "an exception of no known kind");
    }
}

void write_text(std::string_view text, char* buffer, std::size_t capacity, std::size_t* length) {
    if (length != nullptr) *length = text.size();
    if (capacity == 0) return;
    const std::size_t written = std::min(text.size(), capacity - 1);
    std::memcpy(&required(buffer, "buffer"), text.data(), written);
    buffer[written] = 0;
}

}  // namespace rowjit
