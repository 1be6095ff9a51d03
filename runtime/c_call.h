// What every function of the C ABI does around its work: no exception gets out, the message stays with the thread,
// structs of older and newer headers are read, texts are written as snprintf does.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string_view>

#include "base/fail.h"
#include "rowjit/rowjit_c.h"

namespace rowjit {

// The status of the exception in flight, its message kept for this thread. To be called in a catch clause.
rowjit_status caught_status() noexcept;

rowjit_status keep_failure(rowjit_status status, const char* message) noexcept;
const char* last_failure() noexcept;

rowjit_status status_of(ErrorCode code);

template <class Work>
rowjit_status guarded(const Work& work) noexcept try {
    work();
    return ROWJIT_OK;
} catch (...) {
    return caught_status();
}

template <class T>
T& required(T* pointer, const char* what) {
    if (pointer == nullptr) fail(ErrorCode::kInvalidArgument, "{} is NULL", what);
    return *pointer;
}

// A struct of the caller, whose header may be older (what it lacks is 0) or newer (what we do not know must be 0).
template <class T>
T read_struct(const T& given, const char* what) {
    const std::size_t size = given.size;
    if (size < sizeof size) fail(ErrorCode::kInvalidArgument, "{}.size is {}; set it to sizeof({})", what, size, what);
    const auto* bytes = reinterpret_cast<const unsigned char*>(&given);
    for (std::size_t i = sizeof(T); i < size; ++i) {
        if (bytes[i] != 0) {
            fail(ErrorCode::kInvalidArgument,
                 "{} has {} bytes and this library knows {}; what is set beyond needs a newer one", what, size,
                 sizeof(T));
        }
    }
    T value{};
    std::memcpy(&value, &given, std::min(size, sizeof(T)));
    return value;
}

// As much of `value` as the caller's struct has room for; its size stays.
template <class T>
void write_struct(const T& value, T* to, const char* what) {
    const std::size_t size = required(to, what).size;
    if (size < sizeof size) fail(ErrorCode::kInvalidArgument, "{}.size is {}; set it to sizeof({})", what, size, what);
    std::memcpy(to, &value, std::min(size, sizeof(T)));
    to->size = size;
}

void write_text(std::string_view text, char* buffer, std::size_t capacity, std::size_t* length);

}  // namespace rowjit
