#include "cli/completion.h"

#include <algorithm>
#include <fmt/format.h>
#include <sstream>
#include <utility>

#include <CLI/CLI.hpp>

#include "cli/commands.h"
#include "cli/errors.h"
#include "cli/option.h"
#include "mantissa/core/suggest.h"

namespace mantissa::cli {
namespace {

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, at);) parts.push_back(part);
  return parts;
}

/// "a|b|c" lists the values itself. Other lists are too long for a line of help.
std::vector<std::string> values_of(const OptionDescription& option, const std::string& command) {
  if (option.value.find('|') != std::string::npos) return split(option.value, '|');
  if (option.value.empty() || option.names.empty()) return {};
  std::string name = option.names.front().substr(option.names.front().find_first_not_of('-'));
  std::replace(name.begin(), name.end(), '-', '_');
  const Option* const row = find_option(name);
  if (!row) return {};
  std::vector<std::string> choices = row->choices;
  if (command != "fit") std::erase(choices, "all");  // the other commands continue a run, in one mode
  return choices;
}

OptionDescription describe(const CLI::Option& option, const std::string& command) {
  OptionDescription description;
  description.group = option.get_group();
  for (const std::string& name : option.get_snames()) description.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) description.names.push_back("--" + name);
  description.help = option.get_description();
  description.repeats = option.get_expected_max() > 1;
  if (option.get_items_expected_max() > 0)
    description.value = option.get_option_text().empty() ? option.get_type_name() : option.get_option_text();
  std::sort(description.names.begin(), description.names.end(),
            [](const std::string& a, const std::string& b) { return a.size() > b.size(); });
  description.choices = values_of(description, command);
  return description;
}

CommandDescription describe_one(const CLI::App& app, const std::string& name) {
  CommandDescription description{name, app.get_description(), app.get_footer(), {}};
  for (const CLI::Option* option : app.get_options({}))
    description.options.push_back(describe(*option, name));
  return description;
}

std::string join(const std::vector<std::string>& words, const char* between) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : between) + word;
  return text;
}

std::vector<std::string> flags_of(const CommandDescription& command) {
  std::vector<std::string> flags;
  for (const OptionDescription& option : command.options)
    flags.insert(flags.end(), option.names.begin(), option.names.end());
  return flags;
}

std::vector<std::string> arguments_of(const CommandDescription& command) {
  std::vector<std::string> words;
  for (const OptionDescription& option : command.options)
    if (option.names.empty()) words.insert(words.end(), option.choices.begin(), option.choices.end());
  return words;
}

/// Quotes `text` for a shell with single quotes, and puts a backslash before each character of `special`.
std::string quoted(const std::string& text, const std::string& special = "") {
  std::string out = "'";
  for (const char c : text) {
    if (special.find(c) != std::string::npos) out += '\\';
    out += c == '\'' ? "'\\''" : std::string(1, c);
  }
  return out + "'";
}

// Where nothing matches, `-o default` completes file names.
std::string bash(const std::vector<CommandDescription>& commands) {
  std::string words, values;
  for (const CommandDescription& command : commands) {
    std::vector<std::string> all = flags_of(command), arguments = arguments_of(command);
    if (command.name.empty())
      for (const CommandDescription& other : commands)
        if (!other.name.empty()) arguments.push_back(other.name);
    words += fmt::format("    {})\n      options={}\n      arguments={}\n      ;;\n",
                         command.name.empty() ? "''" : command.name, quoted(join(all, " ")),
                         quoted(join(arguments, " ")));
    for (const OptionDescription& option : command.options) {
      if (option.value.empty() || option.names.empty()) continue;
      std::vector<std::string> cases;
      for (const std::string& name : option.names) cases.push_back(quoted(command.name + " " + name));
      values += fmt::format("    {})\n      options=\n      arguments={}\n      ;;\n", join(cases, " | "),
                            quoted(join(option.choices, " ")));
    }
  }
  return fmt::format(R"(# bash completion for mantissa, made by `mantissa completion bash`
_mantissa() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD - 1]}}
  local command='' options='' arguments='' i
  for ((i = 1; i < COMP_CWORD; ++i)); do
    if [[ ${{COMP_WORDS[i]}} != -* ]]; then
      command=${{COMP_WORDS[i]}}
      break
    fi
  done
  case $command in
{}  esac
  case "$command $previous" in
{}  esac
  if [[ $current == -* ]]; then arguments=$options; fi
  mapfile -t COMPREPLY < <(compgen -W "$arguments" -- "$current")
}}
complete -o default -F _mantissa mantissa
)",
                     words, values);
}

std::string zsh_value(const OptionDescription& option) {
  const std::string what = option.choices.empty() ? "_files" : "(" + join(option.choices, " ") + ")";
  std::string name = option.choices.empty() ? option.value : "choice";
  std::replace(name.begin(), name.end(), ':', ' ');
  return ":" + name + ":" + what;
}

std::string zsh(const std::vector<CommandDescription>& commands) {
  std::string names, cases, own;
  for (const CommandDescription& command : commands) {
    std::string specs;
    for (const OptionDescription& option : command.options) {
      if (option.names.empty()) {
        specs += " \\\n          " + quoted((option.repeats ? "*" : "") + zsh_value(option), "");
        continue;
      }
      for (const std::string& name : option.names) {
        const std::string spec = (option.repeats ? "*" : "") + name + "[";
        const std::string value = option.value.empty() ? "" : zsh_value(option);
        specs += fmt::format(" \\\n          {}{}{}", quoted(spec), quoted(option.help, "[]:\\"),
                             quoted(fmt::format("]{}", value)));
      }
    }
    if (command.name.empty()) {
      own = specs;
      continue;
    }
    names += "    " + quoted(command.name + ":") + quoted(command.help, ":\\") + "\n";
    cases += fmt::format("        {})\n          _arguments{}\n          ;;\n", command.name, specs);
  }
  return fmt::format(R"(#compdef mantissa
# zsh completion for mantissa, made by `mantissa completion zsh`
_mantissa() {{
  local state line
  local -a commands
  commands=(
{}  )
  _arguments -C{} \
          '1:command:->command' '*::argument:->argument'
  case $state in
    command) _describe command commands ;;
    argument)
      case $words[1] in
{}      esac
      ;;
  esac
}}
if [[ $funcstack[1] == _mantissa ]]; then
  _mantissa "$@"
else
  compdef _mantissa mantissa
fi
)",
                     names, own, cases);
}

std::string fish(const std::vector<CommandDescription>& commands) {
  std::string text = "# fish completion for mantissa, made by `mantissa completion fish`\n";
  for (const CommandDescription& command : commands) {
    const std::string where =
        command.name.empty() ? "complete -c mantissa -n __fish_use_subcommand"
                             : "complete -c mantissa -n '__fish_seen_subcommand_from " + command.name + "'";
    if (!command.name.empty())
      text += fmt::format("complete -c mantissa -n __fish_use_subcommand -f -a {} -d {}\n", command.name,
                          quoted(command.help, "\\"));
    for (const OptionDescription& option : command.options) {
      std::string line = where;
      for (const std::string& name : option.names)
        line += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
      if (!option.value.empty() && !option.names.empty()) line += option.choices.empty() ? " -r" : " -x";
      if (!option.choices.empty()) line += " -f -a " + quoted(join(option.choices, " "), "\\");
      if (option.names.empty() && option.choices.empty()) continue;  // file names, which is the default
      text += line + " -d " + quoted(option.help, "\\") + "\n";
    }
  }
  return text;
}

/// Escapes text for roff: nothing in it is a command, and a dash can be searched for and copied.
std::string roff(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const bool starts = out.empty() || out.back() == '\n';
    if (starts && (c == '.' || c == '\'')) out += "\\&";
    if (c == '\\')
      out += "\\e";
    else if (c == '-')
      out += "\\-";
    else
      out += c;
  }
  return out;
}

std::string roff(const OptionDescription& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.names) names.push_back("\\fB" + roff(name) + "\\fR");
  std::string line = join(names, ", ");
  if (!option.value.empty()) line += (line.empty() ? "" : " ") + ("\\fI" + roff(option.value) + "\\fR");
  return ".TP\n" + line + "\n" + roff(option.help) + "\n";
}

}  // namespace

std::vector<CommandDescription> describe(const CLI::App& app) {
  std::vector<CommandDescription> all{describe_one(app, "")};
  for (const CLI::App* command : app.get_subcommands({}))
    all.push_back(describe_one(*command, command->get_name()));
  return all;
}

std::string completion(const std::vector<CommandDescription>& commands, const std::string& shell) {
  if (shell == "bash") return bash(commands);
  if (shell == "zsh") return zsh(commands);
  if (shell == "fish") return fish(commands);
  const std::vector<std::string> shells = split(kShells, '|');
  throw UsageError("'" + shell + "' is not a shell that can be completed here" + did_you_mean(shell, shells) +
                   "; choose from " + join_names(shells));
}

std::string man_page(const std::vector<CommandDescription>& commands, const std::string& version) {
  const CommandDescription& program = commands.front();
  std::string text = fmt::format(
      ".TH MANTISSA 1 \"\" \"{}\" \"User Commands\"\n.SH NAME\nmantissa \\- {}\n.SH SYNOPSIS\n.B mantissa\n"
      ".I COMMAND\n[\\fIOPTIONS\\fR]\n.SH OPTIONS\n",
      roff(version), roff(program.help.substr(program.help.find(' ') + 1)));
  for (const OptionDescription& option : program.options) text += roff(option);
  text += ".SH COMMANDS\n";
  for (const CommandDescription& command : commands) {
    if (command.name.empty()) continue;
    text += ".SS mantissa " + roff(command.name) + "\n" + roff(command.help) + ".\n";
    std::string group;
    for (const OptionDescription& option : command.options) {
      // CLI11's own heading, for the options of every command, is left out.
      if (option.group != group && option.group != "Options" && !option.names.empty())
        text += ".PP\n.B " + roff(option.group) + "\n";
      group = option.group;
      text += roff(option);
    }
    if (!command.footer.empty()) text += ".PP\n" + roff(command.footer) + "\n";
  }
  return text + ".SH NOTES\n" + roff(program.footer) + "\n";
}

void add_completion(CLI::App& app) {
  CLI::App* sub = app.add_subcommand("completion", "Print a shell completion script");
  const auto shell = std::make_shared<std::string>();
  sub->add_option("shell", *shell, "the shell")->required()->option_text(kShells);
  sub->footer("For bash: source <(mantissa completion bash), in ~/.bashrc");
  sub->callback([&app, shell] { fmt::print("{}", completion(describe(app), *shell)); });
}

void add_man(CLI::App& app) {
  CLI::App* sub = app.add_subcommand("man", "Print the manual page, in roff");
  sub->footer("To read it: mantissa man | man -l -");
  sub->callback([&app] { fmt::print("{}", man_page(describe(app), app.version())); });
}

}  // namespace mantissa::cli
