// Runs a template. Also what filters, tests and methods ask for: calls, members, limits, errors with a line.
#pragma once

#include <fmt/format.h>

#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "text/jinja/ast.h"
#include "text/jinja/template.h"
#include "text/jinja/value.h"

namespace synod::jinja {

struct Scope {
  std::shared_ptr<Scope> parent;
  std::vector<std::pair<int, Value>> variables;  // few: searched one by one

  const Value* find(int name) const;
  void set(int name, Value value);
};

class Interpreter {
 public:
  Interpreter(const Program& program, const Limits& limits, const std::function<int64_t()>& clock,
              const std::string& source_name);
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  Text run(const std::vector<Variable>& variables);

  // --- For filters, tests, methods and objects ---

  template <typename... Args>
  [[noreturn]] void error(fmt::format_string<Args...> format, Args&&... args) const {
    throw_error(fmt::format(format, std::forward<Args>(args)...));
  }
  // What was attempted with an undefined value, or with one of the wrong type.
  [[noreturn]] void undefined_error(const Value& value) const;
  void charge(int64_t steps);
  void charge_bytes(size_t bytes) { charge(static_cast<int64_t>(bytes / 64)); }
  // Checked against the limits: everything that is built goes through these.
  Value make(List list);
  Value make(Dict dict);
  Value make(Text text);
  Value make_list(std::vector<Value> items, bool is_tuple = false);

  Text text(const Value& value);  // str()
  bool equals(const Value& a, const Value& b);
  int order(const Value& a, const Value& b);  // <0, 0, >0; error when they have no order
  bool contains(const Value& container, const Value& item);
  std::vector<Value> items(const Value& value);  // what a loop over it sees
  int64_t length(const Value& value);
  Value attribute(const Value& value, std::string_view name);
  Value item(const Value& value, const Value& key);
  Value slice(const Value& value, const Value& begin, const Value& end, const Value& step);
  Value binary(std::string_view op, const Value& a, const Value& b);
  Value call(const Value& callee, Arguments& arguments);
  Value filter(std::string_view name, const Value& value, Arguments& arguments);
  bool test(std::string_view name, const Value& value, Arguments& arguments);
  int64_t now() const { return clock_(); }

  // For objects.
  Text capture(const Block& body, const std::shared_ptr<Scope>& scope);
  Text run_loop(const Stmt& stmt, const Value& iterable, const std::shared_ptr<Scope>& scope, int depth);
  Value evaluate(const Expr& expr, const std::shared_ptr<Scope>& scope);
  Value adopt(std::unique_ptr<Object> object);  // lives until the end of the render
  int name_of(std::string_view name) const;     // -1 when the template never says it
  const std::string& name(int id) const { return program_.names[static_cast<size_t>(id)]; }

 private:
  class Depth;
  enum class Exit { kNone, kBreak, kContinue };

  [[noreturn]] void throw_error(const std::string& message) const;
  Exit execute(const Block& block);
  Exit execute(const Stmt& stmt);
  Exit execute_for(const Stmt& stmt, const Value& iterable, int depth);
  void execute_set_block(const Stmt& stmt);
  void execute_call_block(const Stmt& stmt);
  void assign(const Target& target, const Value& value);
  void write(const Text& text);
  Value through_filters(const Expr& chain, Value value);

  Value eval(const Expr& expr);
  Value eval_or_none(const ExprPtr& expr);
  Value eval_name(const Expr& expr);
  Value eval_call(const Expr& expr);
  Value eval_compare(const Expr& expr);
  Value eval_binary(const Expr& expr);
  Value eval_filter(const Expr& expr, Value value);
  Arguments eval_arguments(const Expr& expr);
  Value negative(const Value& value);

  const Program& program_;
  const Limits& limits_;
  const std::function<int64_t()>& clock_;
  const std::string& source_name_;
  std::vector<std::unique_ptr<Object>> objects_;
  std::shared_ptr<Scope> scope_;
  Text* out_ = nullptr;
  int64_t steps_ = 0;
  int depth_ = 0;
  int line_ = 1;
};

// The arguments of a call by name and position.
class Parameters {
 public:
  // `names` in positional order. Throws through `interpreter` for too many or unknown ones.
  Parameters(Interpreter& interpreter, std::string_view what, const Arguments& arguments,
             std::initializer_list<std::string_view> names);
  const Value* find(size_t i) const { return values_[i]; }  // null when not given
  const Value& need(size_t i) const;
  bool flag(size_t i, bool fallback) const;
  int64_t integer(size_t i, int64_t fallback) const;
  Text text(size_t i, std::string_view fallback) const;

 private:
  Interpreter& interpreter_;
  std::string_view what_;
  std::vector<std::string_view> names_;
  std::vector<const Value*> values_;
};

// Functions every template sees: range, dict, namespace, raise_exception, strftime_now, joiner, cycler.
std::vector<Variable> make_globals(Interpreter& interpreter);
Value make_macro(Interpreter& interpreter, const Stmt& stmt, std::shared_ptr<Scope> scope);
// Methods of strings, lists and dictionaries.
bool has_method(const Value& value, std::string_view name);
Value call_method(Interpreter& interpreter, const Value& value, std::string_view name,
                  const Arguments& arguments);
Value bound_method(const Value& value, std::string_view name);

// Python's json.dumps as chat templates call it.
struct JsonStyle {
  int64_t indent = -1;  // none
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool ascii = false;
  bool sort_keys = false;
};
Text to_json(Interpreter& interpreter, const Value& value, const JsonStyle& style);
// Python's % on strings, and str.format.
Text percent_format(Interpreter& interpreter, const Text& format, const std::vector<Value>& values,
                    const Dict* named);
Text brace_format(Interpreter& interpreter, const Text& format, const Arguments& arguments);

// Text helpers that keep the origin of every character.
enum class Case { kUpper, kLower, kCapital, kTitle, kSwap };
Text with_case(const Text& text, Case style);
Text strip(const Text& text, const Text* characters, bool left, bool right);
Text replace(Interpreter& interpreter, const Text& text, const Text& from, const Text& to, int64_t count);
std::vector<Text> split_lines(const Text& text, bool keep_ends);
Text repeated(Interpreter& interpreter, const Text& text, int64_t n);

}  // namespace synod::jinja
