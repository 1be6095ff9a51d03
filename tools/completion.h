// Completion of the command line for shells, made of the command line's own description.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace rowjit {

// A script for "bash", "zsh" or "fish" to read.
std::string completion_script(const CLI::App& app, const std::string& shell);

}  // namespace rowjit
