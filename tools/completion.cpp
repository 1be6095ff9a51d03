#include "tools/completion.h"

#include <fmt/format.h>

#include <vector>

namespace rowjit {
namespace {

// The commands that people give.
std::vector<const CLI::App*> commands_of(const CLI::App& app) {
    return app.get_subcommands([](const CLI::App* command) { return !command->get_group().empty(); });
}

// "--model", "--help", of a command or of all.
std::vector<std::string> option_names(const CLI::App& app) {
    std::vector<std::string> names;
    for (const CLI::Option* option : app.get_options()) {
        for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    }
    return names;
}

// Words that a positional argument is one of: CLI11 keeps them in the description of its check, "TEXT:{stats,ls}".
std::vector<std::string> choices(const CLI::Option& option) {
    const std::string type = option.get_type_name();
    const std::size_t begin = type.find('{');
    const std::size_t end = type.find('}');
    std::vector<std::string> words;
    if (begin == std::string::npos || end == std::string::npos) return words;
    for (std::string& word : CLI::detail::split(type.substr(begin + 1, end - begin - 1), ','))
        words.push_back(std::move(word));
    return words;
}

std::vector<std::string> positional_words(const CLI::App& command) {
    std::vector<std::string> words;
    for (const CLI::Option* option : command.get_options()) {
        if (!option->get_positional()) continue;
        for (std::string& word : choices(*option)) words.push_back(std::move(word));
    }
    return words;
}

std::string joined(const std::vector<std::string>& words) { return fmt::format("{}", fmt::join(words, " ")); }

std::string bash_script(const CLI::App& app) {
    std::vector<std::string> names;
    std::string cases;
    for (const CLI::App* command : commands_of(app)) {
        names.push_back(command->get_name());
        std::vector<std::string> words = option_names(*command);
        for (std::string& word : positional_words(*command)) words.push_back(std::move(word));
        cases += fmt::format("        {}) words=\"{}\" ;;\n", command->get_name(), joined(words));
    }
    return fmt::format(R"(_rowjit() {{
    local word command="" words
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        case " {0} " in *" $word "*) command=$word; break ;; esac
    done
    case "$command" in
        "") words="{0}" ;;
{1}    esac
    COMPREPLY=($(compgen -W "$words {2}" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _rowjit rowjit
)",
                       joined(names), cases, joined(option_names(app)));
}

std::string quoted(const std::string& text) {
    std::string result = "'";
    for (const char c : text) result += c == '\'' ? std::string("\\'") : std::string(1, c);
    return result + "'";
}

std::string fish_options(const CLI::App& command, const std::string& condition) {
    std::string lines;
    for (const CLI::Option* option : command.get_options()) {
        const std::string takes = option->get_expected_max() > 0 ? " -r" : "";
        for (const std::string& name : option->get_lnames()) {
            lines += fmt::format("complete -c rowjit{} -l {}{} -d {}\n", condition, name, takes,
                                 quoted(option->get_description()));
        }
    }
    return lines;
}

std::string fish_script(const CLI::App& app) {
    std::string lines = fish_options(app, "");
    for (const CLI::App* command : commands_of(app)) {
        const std::string& name = command->get_name();
        const std::string seen = fmt::format(" -n '__fish_seen_subcommand_from {}'", name);
        lines += fmt::format("complete -c rowjit -f -n __fish_use_subcommand -a {} -d {}\n", name,
                             quoted(command->get_description()));
        for (const std::string& word : positional_words(*command))
            lines += fmt::format("complete -c rowjit{} -a {}\n", seen, word);
        lines += fish_options(*command, seen);
    }
    return lines;
}

}  // namespace

std::string completion_script(const CLI::App& app, const std::string& shell) {
    if (shell == "fish") return fish_script(app);
    const std::string script = bash_script(app);
    return shell == "zsh" ? "autoload -U +X bashcompinit && bashcompinit\n" + script : script;
}

}  // namespace rowjit
