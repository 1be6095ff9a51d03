// The third kind of failure: "this does not apply here, and why". A schedule, a rewrite or a toolchain returns
// Offer<T>; the reason reaches the user through `rowjit explain`.
#pragma once

#include <string>
#include <utility>
#include <variant>

namespace rowjit {

struct Declined {
    std::string reason;
};

template <class T>
class Offer {
  public:
    Offer(T value) : result_(std::move(value)) {}               // NOLINT(google-explicit-constructor): a return value
    Offer(Declined declined) : result_(std::move(declined)) {}  // NOLINT(google-explicit-constructor): a return value

    explicit operator bool() const { return std::holds_alternative<T>(result_); }
    const T& operator*() const { return std::get<T>(result_); }
    T& operator*() { return std::get<T>(result_); }
    const T* operator->() const { return &std::get<T>(result_); }
    const std::string& reason() const { return std::get<Declined>(result_).reason; }

  private:
    std::variant<T, Declined> result_;
};

}  // namespace rowjit
