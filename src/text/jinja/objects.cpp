// Namespaces, macros, and the functions every template sees.
#include <algorithm>
#include <array>
#include <ctime>
#include <unordered_map>

#include "text/jinja/interpreter.h"

namespace synod::jinja {

Value Object::call(Interpreter& interpreter, Arguments&) {
  interpreter.error("a {} cannot be called", type_name());
}

Parameters::Parameters(Interpreter& interpreter, std::string_view what, const Arguments& arguments,
                       std::initializer_list<std::string_view> names)
    : interpreter_(interpreter), what_(what), names_(names), values_(names.size(), nullptr) {
  if (arguments.positional.size() > names_.size()) {
    interpreter.error("{}: expected at most {} arguments, got {}", what, names_.size(),
                      arguments.positional.size());
  }
  for (size_t i = 0; i < arguments.positional.size(); ++i) values_[i] = &arguments.positional[i];
  for (const auto& [key, value] : arguments.named) {
    const auto found = std::find(names_.begin(), names_.end(), key);
    if (found == names_.end()) interpreter.error("{}: unknown argument '{}'", what, key);
    const auto at = static_cast<size_t>(found - names_.begin());
    if (values_[at] != nullptr) interpreter.error("{}: the argument '{}' is given twice", what, key);
    values_[at] = &value;
  }
}

const Value& Parameters::need(size_t i) const {
  if (values_[i] == nullptr) interpreter_.error("{}: the argument '{}' is missing", what_, names_[i]);
  return *values_[i];
}

bool Parameters::flag(size_t i, bool fallback) const {
  return values_[i] != nullptr ? values_[i]->truth() : fallback;
}

int64_t Parameters::integer(size_t i, int64_t fallback) const {
  if (values_[i] == nullptr || values_[i]->is_none()) return fallback;
  const auto value = values_[i]->integer();
  if (!value) {
    interpreter_.error("{}: {}: expected a whole number, got a {}", what_, names_[i],
                       values_[i]->type_name());
  }
  return *value;
}

Text Parameters::text(size_t i, std::string_view fallback) const {
  if (values_[i] == nullptr) return Text(std::string(fallback), Origin::kMarkup);
  return interpreter_.text(*values_[i]);
}

namespace {

class Namespace final : public Object {
 public:
  std::string type_name() const override { return "Namespace"; }
  std::optional<Value> attribute(std::string_view name) override {
    const auto found = members_.find(std::string(name));
    if (found == members_.end()) return std::nullopt;
    return found->second;
  }
  bool set_attribute(std::string_view name, Value value) override {
    members_[std::string(name)] = std::move(value);
    return true;
  }

 private:
  std::unordered_map<std::string, Value> members_;
};

class Macro final : public Object {
 public:
  Macro(const Stmt& stmt, std::shared_ptr<Scope> scope) : stmt_(stmt), scope_(std::move(scope)) {}
  std::string type_name() const override { return "Macro"; }
  bool callable() const override { return true; }

  Value call(Interpreter& interpreter, Arguments& arguments) override {
    const auto scope = std::make_shared<Scope>(Scope{scope_, {}});
    const std::string name = stmt_.name >= 0 ? interpreter.name(stmt_.name) : "caller";
    const auto& parameters = stmt_.parameters;
    std::vector<bool> given(parameters.size(), false);
    std::vector<Value> rest;
    for (size_t i = 0; i < arguments.positional.size(); ++i) {
      if (i < parameters.size()) {
        scope->set(parameters[i].name, arguments.positional[i]);
        given[i] = true;
      } else {
        rest.push_back(arguments.positional[i]);
      }
    }
    if (!rest.empty() && !stmt_.uses_varargs) {
      interpreter.error("macro {}: expected at most {} arguments, got {}", name, parameters.size(),
                        arguments.positional.size());
    }
    Dict named;
    Value caller = Value::undefined("no caller is defined: the macro was not called by a call block");
    for (const auto& argument : arguments.named) {
      const std::string& key = argument.first;
      const Value& value = argument.second;
      const auto at = std::find_if(parameters.begin(), parameters.end(), [&](const Parameter& parameter) {
        return interpreter.name(parameter.name) == key;
      });
      if (at != parameters.end()) {
        const auto i = static_cast<size_t>(at - parameters.begin());
        if (given[i]) interpreter.error("macro {}: the argument '{}' is given twice", name, key);
        scope->set(at->name, value);
        given[i] = true;
      } else if (key == "caller" && stmt_.uses_caller) {
        caller = value;
      } else if (stmt_.uses_kwargs) {
        named.set(Value::markup(key), value);
      } else {
        interpreter.error("macro {}: unknown argument '{}'", name, key);
      }
    }
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (given[i]) continue;
      const Parameter& parameter = parameters[i];
      scope->set(parameter.name,
                 parameter.fallback != nullptr
                     ? interpreter.evaluate(*parameter.fallback, scope)
                     : Value::undefined(fmt::format("the argument '{}' of macro {} was not given",
                                                    interpreter.name(parameter.name), name)));
    }
    const auto set = [&](std::string_view word, Value value) {
      if (const int id = interpreter.name_of(word); id >= 0) scope->set(id, std::move(value));
    };
    if (stmt_.uses_caller) set("caller", caller);
    if (stmt_.uses_varargs) set("varargs", interpreter.make_list(std::move(rest), true));
    if (stmt_.uses_kwargs) set("kwargs", interpreter.make(std::move(named)));
    return interpreter.make(interpreter.capture(stmt_.body, scope));
  }

  std::optional<Value> attribute(std::string_view name) override {
    if (name == "name") return Value(Text("macro", Origin::kMarkup));
    return std::nullopt;
  }

 private:
  const Stmt& stmt_;
  std::shared_ptr<Scope> scope_;  // where it was defined; it sees later changes there
};

class Joiner final : public Object {
 public:
  explicit Joiner(Text separator) : separator_(std::move(separator)) {}
  std::string type_name() const override { return "Joiner"; }
  bool callable() const override { return true; }
  Value call(Interpreter&, Arguments&) override {
    if (!used_) {
      used_ = true;
      return Value::markup("");
    }
    return separator_;
  }

 private:
  Text separator_;
  bool used_ = false;
};

class Cycler final : public Object {
 public:
  explicit Cycler(std::vector<Value> items) : items_(std::move(items)) {}
  std::string type_name() const override { return "Cycler"; }
  std::optional<Value> attribute(std::string_view name) override {
    if (name == "current") return items_[at_];
    if (name == "next" || name == "reset") return Value(std::make_shared<Step>(*this, name == "next"));
    return std::nullopt;
  }

 private:
  class Step final : public Object {  // cyclers live as long as the render
   public:
    Step(Cycler& cycler, bool next) : cycler_(cycler), next_(next) {}
    std::string type_name() const override { return "method"; }
    bool callable() const override { return true; }
    Value call(Interpreter&, Arguments&) override {
      const Value current = cycler_.items_[cycler_.at_];
      cycler_.at_ = next_ ? (cycler_.at_ + 1) % cycler_.items_.size() : 0;
      return next_ ? current : Value(None{});
    }

   private:
    Cycler& cycler_;
    bool next_;
  };

  std::vector<Value> items_;
  size_t at_ = 0;
};

class Function final : public Object {
 public:
  using Body = Value (*)(Interpreter&, Arguments&);
  explicit Function(Body body) : body_(body) {}
  std::string type_name() const override { return "function"; }
  bool callable() const override { return true; }
  Value call(Interpreter& interpreter, Arguments& arguments) override {
    return body_(interpreter, arguments);
  }

 private:
  Body body_;
};

constexpr int64_t kMaxRange = 100'000;  // as the published sandbox has it

Value range(Interpreter& interpreter, Arguments& arguments) {
  const Parameters parameters(interpreter, "range", arguments, {"start", "stop", "step"});
  parameters.need(0);
  const bool one = parameters.find(1) == nullptr;
  const int64_t begin = one ? 0 : parameters.integer(0, 0);
  const int64_t end = parameters.integer(one ? 0 : 1, 0);
  const int64_t step = parameters.integer(2, 1);
  if (step == 0) interpreter.error("range: the step cannot be 0");
  std::vector<Value> items;
  int64_t at = begin;
  while (step > 0 ? at < end : at > end) {
    if (static_cast<int64_t>(items.size()) >= kMaxRange)
      interpreter.error("range: more than {} items", kMaxRange);
    items.emplace_back(at);
    if (__builtin_add_overflow(at, step, &at)) break;
  }
  return interpreter.make_list(std::move(items));
}

Value make_dict(Interpreter& interpreter, Arguments& arguments) {
  Dict dict;
  for (const Value& source : arguments.positional) {
    if (const Dict* other = source.dict()) {
      for (const auto& [key, value] : other->items()) dict.set(key, value);
      continue;
    }
    for (const Value& pair : interpreter.items(source)) {
      const std::vector<Value> parts = interpreter.items(pair);
      if (parts.size() != 2 || !dict.set(parts[0], parts[1])) interpreter.error("dict: expected pairs");
    }
  }
  for (const auto& [key, value] : arguments.named) dict.set(Value::markup(key), value);
  return interpreter.make(std::move(dict));
}

Value make_namespace(Interpreter& interpreter, Arguments& arguments) {
  auto object = std::make_unique<Namespace>();
  for (const Value& source : arguments.positional) {
    const Dict* dict = source.dict();
    if (dict == nullptr) interpreter.error("namespace: expected a dictionary, got a {}", source.type_name());
    for (const auto& [key, value] : dict->items()) {
      if (key.text() != nullptr) object->set_attribute(key.text()->view(), value);
    }
  }
  for (const auto& [key, value] : arguments.named) object->set_attribute(key, value);
  return interpreter.adopt(std::move(object));
}

Value raise_exception(Interpreter& interpreter, Arguments& arguments) {
  const Parameters parameters(interpreter, "raise_exception", arguments, {"message"});
  interpreter.error("the template refuses this conversation: {}", parameters.text(0, "").bytes());
}

Value strftime_now(Interpreter& interpreter, Arguments& arguments) {
  const Parameters parameters(interpreter, "strftime_now", arguments, {"format"});
  const Text format = parameters.text(0, "");
  const auto seconds = static_cast<std::time_t>(interpreter.now());
  std::tm local{};
  localtime_r(&seconds, &local);
  if (format.size() > 1024) interpreter.error("strftime_now: a format of more than 1024 bytes");
  std::array<char, 8192> buffer{};
  const size_t size = std::strftime(buffer.data(), buffer.size(), format.bytes().c_str(), &local);
  return Text(std::string(buffer.data(), size), format.origin());
}

Value make_joiner(Interpreter& interpreter, Arguments& arguments) {
  const Parameters parameters(interpreter, "joiner", arguments, {"sep"});
  return interpreter.adopt(std::make_unique<Joiner>(parameters.text(0, ", ")));
}

Value make_cycler(Interpreter& interpreter, Arguments& arguments) {
  if (arguments.positional.empty()) interpreter.error("cycler: expected one value or more");
  return interpreter.adopt(std::make_unique<Cycler>(arguments.positional));
}

}  // namespace

std::vector<Variable> make_globals(Interpreter&) {
  const auto function = [](Function::Body body) { return Value(std::make_shared<Function>(body)); };
  return {{"range", function(range)},
          {"dict", function(make_dict)},
          {"namespace", function(make_namespace)},
          {"raise_exception", function(raise_exception)},
          {"strftime_now", function(strftime_now)},
          {"joiner", function(make_joiner)},
          {"cycler", function(make_cycler)}};
}

Value make_macro(Interpreter& interpreter, const Stmt& stmt, std::shared_ptr<Scope> scope) {
  return interpreter.adopt(std::make_unique<Macro>(stmt, std::move(scope)));
}

}  // namespace synod::jinja
