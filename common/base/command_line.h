// The command line of a program, for programs that are linked with CLI11.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/error.h"
#include "common/base/nearest.h"
#include "common/base/number.h"
#include "common/base/standard_streams.h"
#include "common/base/text_table.h"
#include "common/base/version.h"

namespace attn {

/// Adds -h, --help and --version, which prints the name of `app` and the project's version.
inline void add_help_and_version(CLI::App& app) {
  app.set_help_flag("-h,--help", "this text");
  app.set_version_flag("--version", app.get_name() + " " + version(), "the version");
}

/// Adds an option whose value is a number from `min` to `max`. CLI11's own options with numbers would also take nan,
/// hex digits and other texts. `target` has the type of the limits, or is an optional of this type.
template <typename Target, typename Number>
CLI::Option* number_option(CLI::App& app, const std::string& name, Target& target, Number min, Number max,
                           const std::string& type, const std::string& help) {
  const auto take = [name, &target, min, max](const CLI::results_t& values) {
    // parse_command_line() refuses an empty value.
    if (!values.back().empty()) target = parse_number(name, values.back(), min, max);
    return true;
  };
  return app.add_option(name, take, help)->type_name(type);
}

/// Returns the options of a program and of its commands.
inline std::vector<const CLI::Option*> options_of(const CLI::App& app) {
  std::vector<const CLI::Option*> options = app.get_options();
  for (const CLI::App* command : app.get_subcommands({}))
    for (const CLI::Option* option : command->get_options()) options.push_back(option);
  return options;
}

/// Throws BadInput for a flag with a value, as in --quiet=3. CLI11 takes such values. Even after
/// disable_flag_override(), CLI11 takes --quiet= and --quiet=true.
inline void refuse_flags_with_values(const CLI::App& app, int argc, const char* const* argv) {
  for (int i = 1; i < argc && argv[i] != std::string_view("--"); ++i) {
    const std::string word = argv[i];
    const std::string name = word.substr(0, word.find('='));
    if (!name.starts_with("-") || name == word) continue;
    for (const CLI::Option* option : options_of(app)) {
      if (option->get_items_expected_max() == 0 && option->check_name(name))
        throw BadInput(name + ": takes no value; --help shows what is allowed");
    }
  }
}

/// Returns what is wrong with the first word of a command line that names no option and no command.
inline std::string unexpected_text(const CLI::App& app) {
  const std::vector<std::string> words = app.remaining(true);
  if (words.empty()) return "";
  const std::string name = words.front().substr(0, words.front().find('='));
  std::vector<std::string> known;
  if (name.starts_with("-")) {
    const auto add = [&](const CLI::App& one) {
      for (const CLI::Option* option : one.get_options()) {
        if (option->get_group().empty()) continue;  // a hidden option
        for (const std::string& other : option->get_lnames()) known.push_back("--" + other);
      }
    };
    add(app);
    for (const CLI::App* command : app.get_subcommands()) add(*command);  // the commands of this line
  } else {
    for (const CLI::App* command : app.get_subcommands({})) known.push_back(command->get_name());
  }
  const bool command = !name.starts_with("-") && !known.empty() && app.get_subcommands().empty();
  return fmt::format("{}: {}{}", name.starts_with("-") ? name : words.front(),
                     name.starts_with("-") ? "no such option"
                     : command             ? "no such command"
                                           : "no argument is allowed here",
                     did_you_mean(name, known));
}

/// Returns what is wrong with a command line that CLI11 refused.
inline std::string refusal_text(const CLI::App& app, const CLI::ParseError& error) {
  // The text of CLI11 has the words in reverse order.
  if (dynamic_cast<const CLI::ExtrasError*>(&error)) return unexpected_text(app);
  std::string text = error.what();
  std::ranges::replace(text, '\n', ' ');
  if (error.get_name() == "ArgumentMismatch") {
    for (const CLI::Option* option : options_of(app)) {
      const size_t times = option->count();
      if (times > 1 && option->get_items_expected_max() == 1 && text.starts_with(option->get_name() + ":"))
        return fmt::format("{}: given {}; once is allowed", option->get_name(),
                           times == 2 ? "twice" : fmt::format("{} times", times));
      if (text == fmt::format("{}: 1 required {} missing", option->get_name(), option->get_type_name()))
        return fmt::format("{}: its value, {}, is missing", option->get_name(), option->get_type_name());
    }
  }
  const auto pair = [&](const std::string& verb, const std::string& words) {
    const size_t at = text.find(verb);
    return fmt::format(fmt::runtime(words), text.substr(0, at), text.substr(at + verb.size()));
  };
  if (error.get_name() == "ExcludesError")
    return pair(" excludes ", "{} and {} are given; only one of them is allowed");
  if (error.get_name() == "RequiresError") return pair(" requires ", "{} is allowed only with {}");
  return text;
}

/// Parses a command line. Prints the text that --help or --version ask for, and then returns false. Throws BadInput,
/// with one line, for arguments that the program does not take, and for an option with an empty value.
inline bool parse_command_line(CLI::App& app, int argc, const char* const* argv) {
  refuse_flags_with_values(app, argc, argv);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    // An option's text and the lines of a footer's paragraphs may be longer than a line of the terminal.
    constexpr size_t most_characters = 120, without_terminal = 80;
    app.footer(unbroken(app.get_footer()));
    for (CLI::App* command : app.get_subcommands({})) command->footer(unbroken(command->get_footer()));
    to_stdout(fitted(app.help(), std::min(output_width(without_terminal), most_characters)));
    return false;
  } catch (const CLI::CallForVersion& version) {
    to_stdout(std::string(version.what()) + "\n");
    return false;
  } catch (const CLI::ParseError& error) {
    throw BadInput(refusal_text(app, error) + "; --help shows what is allowed");
  }
  for (const CLI::Option* option : options_of(app)) {
    if (option->get_positional() || std::ranges::count(option->results(), "") == 0) continue;
    throw BadInput(option->get_name() + " is empty; --help shows what is allowed");
  }
  return true;
}

}  // namespace attn
