#include "compiler/toolchain/runtime_compiler.h"

#include "base/fail.h"
#include "compiler/toolchain/compile_failure.h"

namespace rowjit {
namespace {

// Destroys the program on every path.
class ProgramHandle {
  public:
    explicit ProgramHandle(const RuntimeCompiler& compiler) : compiler_(compiler) {}
    ProgramHandle(const ProgramHandle&) = delete;
    ProgramHandle& operator=(const ProgramHandle&) = delete;
    ~ProgramHandle() {
        if (program != nullptr) compiler_.destroy(&program);
    }

    RuntimeCompiler::Program program = nullptr;

  private:
    const RuntimeCompiler& compiler_;
};

std::string log_of(const RuntimeCompiler& compiler, RuntimeCompiler::Program program) {
    std::size_t size = 0;
    if (compiler.log_size(program, &size) != RuntimeCompiler::kSuccess || size == 0) return "";
    std::string log(size, '\0');
    if (compiler.log(program, log.data()) != RuntimeCompiler::kSuccess) return "";
    return log;
}

}  // namespace

std::string resolve(RuntimeCompiler& compiler, const DynamicLibrary& library, const std::string& prefix,
                    const std::string& code) {
    std::string missing;
    const auto need = [&](const std::string& name, auto*& function) {
        if (!library.find((prefix + name).c_str(), function) && missing.empty()) missing = prefix + name;
    };
    need("Version", compiler.version);
    need("CreateProgram", compiler.create);
    need("DestroyProgram", compiler.destroy);
    need("CompileProgram", compiler.compile);
    need("Get" + code + "Size", compiler.code_size);
    need("Get" + code, compiler.code);
    need("GetProgramLogSize", compiler.log_size);
    need("GetProgramLog", compiler.log);
    need("GetErrorString", compiler.error_text);
    return missing;
}

std::string run_compiler(const RuntimeCompiler& compiler, const Source& source, const Target& target,
                         const std::vector<std::string>& options) {
    ProgramHandle handle(compiler);
    std::string log;
    const auto require = [&](int result, const char* step) {
        if (result == RuntimeCompiler::kSuccess) return;
        const bool refused = result == RuntimeCompiler::kCompilationFailed || result == RuntimeCompiler::kInvalidOption;
        fail(refused ? ErrorCode::kCompile : ErrorCode::kEnvironment, "{} for {}: {}: {}\n{}", compiler.label,
             target.name, step, compiler.error_text(result),
             describe_compile_failure(source.text, compiler.file_name, log));
    };
    require(compiler.create(&handle.program, source.text.c_str(), compiler.file_name.c_str(), 0, nullptr, nullptr),
            "creating the program");

    std::vector<const char*> arguments;
    for (const std::string& option : options) arguments.push_back(option.c_str());
    const int result = compiler.compile(handle.program, static_cast<int>(arguments.size()), arguments.data());
    if (result != RuntimeCompiler::kSuccess) log = log_of(compiler, handle.program);
    require(result, "compiling");

    std::size_t size = 0;
    require(compiler.code_size(handle.program, &size), "sizing the code");
    std::string code(size, '\0');
    require(compiler.code(handle.program, code.data()), "reading the code");
    return code;
}

}  // namespace rowjit
