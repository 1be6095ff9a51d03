#include "base/dynamic_library.h"

#include <dlfcn.h>
#include <link.h>

#include <filesystem>
#include <system_error>
#include <utility>

namespace rowjit {

Offer<DynamicLibrary> DynamicLibrary::open(const std::string& path) {
    DynamicLibrary library;
    // Vendor libraries start threads and register exit handlers, whose code must not be unmapped with the last handle.
    library.handle_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library.handle_ == nullptr) {
        const char* message = dlerror();
        return Declined{message != nullptr ? message : path + ": the loader gives no reason"};
    }
    link_map* map = nullptr;
    const bool named =
        dlinfo(library.handle_, RTLD_DI_LINKMAP, static_cast<void*>(&map)) == 0 && map->l_name[0] != '\0';
    library.path_ = named ? map->l_name : path;
    return library;
}

DynamicLibrary::DynamicLibrary(DynamicLibrary&& other) noexcept
    : handle_(std::exchange(other.handle_, nullptr)), path_(std::move(other.path_)) {}

DynamicLibrary& DynamicLibrary::operator=(DynamicLibrary&& other) noexcept {
    std::swap(handle_, other.handle_);
    std::swap(path_, other.path_);
    return *this;
}

DynamicLibrary::~DynamicLibrary() {
    if (handle_ != nullptr) dlclose(handle_);
}

void* DynamicLibrary::address(const char* symbol) const {
    return handle_ == nullptr ? nullptr : dlsym(handle_, symbol);
}

std::string own_file() {
    Dl_info info;
    link_map* map = nullptr;
    const void* here = reinterpret_cast<const void*>(&own_file);
    const bool found = dladdr1(here, &info, reinterpret_cast<void**>(&map), RTLD_DL_LINKMAP) != 0 && map != nullptr;
    // The executable's own entry has no name: argv[0] is what its caller made of it, the kernel's link is the truth.
    const char* file = found && map->l_name[0] != '\0' ? map->l_name : "/proc/self/exe";
    std::error_code error;
    const std::filesystem::path resolved = std::filesystem::canonical(file, error);
    return error ? "" : resolved.string();
}

}  // namespace rowjit
