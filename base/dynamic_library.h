// A shared library opened at run time. Vendor libraries are never linked: rowjit builds and starts without them, and
// asks for one only when its target is used. Where to look for a library is its user's knowledge, not this file's.
#pragma once

#include <string>

#include "base/declined.h"

namespace rowjit {

class DynamicLibrary {
  public:
    // `path` is a file, or a bare soname for the loader's own search. Symbols stay local: two vendors' libraries that
    // each carry an LLVM must not see one another. Declines with the loader's message.
    static Offer<DynamicLibrary> open(const std::string& path);

    DynamicLibrary() = default;
    DynamicLibrary(DynamicLibrary&& other) noexcept;
    DynamicLibrary& operator=(DynamicLibrary&& other) noexcept;
    ~DynamicLibrary();

    // The file the loader mapped, also when opened by soname.
    const std::string& path() const { return path_; }

    // Sets `function` to the exported function of that name; null and false when the library has none.
    template <class Function>
    bool find(const char* symbol, Function*& function) const {
        function = reinterpret_cast<Function*>(address(symbol));
        return function != nullptr;
    }

  private:
    void* address(const char* symbol) const;

    void* handle_ = nullptr;
    std::string path_;
};

// The file this code was loaded from: the executable, or the shared library that embeds rowjit. Libraries shipped with
// rowjit are looked for relative to it.
std::string own_file();

}  // namespace rowjit
