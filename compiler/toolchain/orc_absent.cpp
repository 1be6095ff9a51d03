// The CPU toolchain of a build without LLVM (ROWJIT_LLVM=OFF): what needs it says so.
#include "base/fail.h"
#include "compiler/toolchain/orc.h"

namespace rowjit {
namespace {

[[noreturn]] void refuse() {
    fail(ErrorCode::kEnvironment,
         "this build of rowjit has no CPU backend; install llvm-19-dev and configure with -DROWJIT_LLVM=ON");
}

}  // namespace

bool has_cpu_toolchain() { return false; }
std::string cpu_toolchain_version() { return "none"; }
Target host_cpu_target() { refuse(); }
std::string cpu_key_text(const Kernel&, const Target&) { refuse(); }
Artifact compile_cpu(const Kernel&, const Target&) { refuse(); }
std::string print_llvm(const Kernel&, const Target&) { refuse(); }
std::string print_assembly(const Kernel&, const Target&) { refuse(); }
std::unique_ptr<CpuCode> load_cpu_object(const Artifact&) { refuse(); }

struct CpuCode::Linked {};
CpuCode::CpuCode(std::unique_ptr<Linked> linked) : linked_(std::move(linked)) {}
CpuCode::~CpuCode() = default;
void* CpuCode::symbol(const std::string&) { refuse(); }

}  // namespace rowjit
