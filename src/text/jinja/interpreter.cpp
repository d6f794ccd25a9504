#include "text/jinja/interpreter.h"

#include <algorithm>
#include <cmath>

namespace synod::jinja {

const Value* Scope::find(int name) const {
  for (const Scope* scope = this; scope != nullptr; scope = scope->parent.get()) {
    for (const auto& [key, value] : scope->variables) {
      if (key == name) return &value;
    }
  }
  return nullptr;
}

void Scope::set(int name, Value value) {
  for (auto& [key, old] : variables) {
    if (key == name) {
      old = std::move(value);
      return;
    }
  }
  variables.emplace_back(name, std::move(value));
}

class Interpreter::Depth {
 public:
  explicit Depth(Interpreter& interpreter) : interpreter_(interpreter) {
    if (++interpreter_.depth_ > interpreter_.limits_.max_depth) {
      --interpreter_.depth_;
      interpreter_.error("nested more than {} deep: does a macro call itself for ever?",
                         interpreter_.limits_.max_depth);
    }
  }
  ~Depth() { --interpreter_.depth_; }
  Depth(const Depth&) = delete;
  Depth& operator=(const Depth&) = delete;

 private:
  Interpreter& interpreter_;
};

Interpreter::Interpreter(const Program& program, const Limits& limits, const std::function<int64_t()>& clock,
                         const std::string& source_name)
    : program_(program), limits_(limits), clock_(clock), source_name_(source_name) {}

Interpreter::~Interpreter() = default;

Text Interpreter::run(const std::vector<Variable>& variables) {
  auto globals = std::make_shared<Scope>();
  for (Variable& global : make_globals(*this)) {
    if (const int id = name_of(global.name); id >= 0) globals->set(id, std::move(global.value));
  }
  auto context = std::make_shared<Scope>(Scope{globals, {}});
  for (const Variable& variable : variables) {
    if (const int id = name_of(variable.name); id >= 0) context->set(id, variable.value);
  }
  scope_ = context;
  Text out;
  out_ = &out;
  execute(program_.body);
  return out;
}

int Interpreter::name_of(std::string_view name) const {
  const auto found = std::find(program_.names.begin(), program_.names.end(), name);
  return found == program_.names.end() ? -1 : static_cast<int>(found - program_.names.begin());
}

void Interpreter::throw_error(const std::string& message) const {
  throw Error(Error::Kind::kUsage, fmt::format("{}: line {}: {}", source_name_, line_, message));
}

void Interpreter::undefined_error(const Value& value) const {
  const auto* undefined = value.get_if<Undefined>();
  SYNOD_ASSERT(undefined != nullptr);
  error("{}", undefined->what != nullptr ? *undefined->what : "an undefined value was used");
}

void Interpreter::charge(int64_t steps) {
  steps_ += steps;
  if (steps_ > limits_.max_steps) error("the template took more than {} steps", limits_.max_steps);
}

Value Interpreter::make(Text text) {
  charge_bytes(text.size());
  if (text.size() > limits_.max_output_bytes) {
    error("a string of more than {} bytes", limits_.max_output_bytes);
  }
  return text;
}

namespace {
constexpr int kMaxValueDepth = 300;
}  // namespace

Value Interpreter::make(List list) {
  charge(static_cast<int64_t>(list.items.size()));
  Value value(std::move(list));
  if (value.depth() > kMaxValueDepth) error("a list nested more than {} deep", kMaxValueDepth);
  if (value.weight() > limits_.max_output_bytes)
    error("a list of more than {} bytes", limits_.max_output_bytes);
  return value;
}

Value Interpreter::make(Dict dict) {
  charge(static_cast<int64_t>(dict.size()));
  Value value(std::move(dict));
  if (value.depth() > kMaxValueDepth) error("a dictionary nested more than {} deep", kMaxValueDepth);
  if (value.weight() > limits_.max_output_bytes) {
    error("a dictionary of more than {} bytes", limits_.max_output_bytes);
  }
  return value;
}

Value Interpreter::make_list(std::vector<Value> items, bool is_tuple) {
  return make(List{.items = std::move(items), .is_tuple = is_tuple});
}

Value Interpreter::adopt(std::unique_ptr<Object> object) {
  charge(16);
  objects_.push_back(std::move(object));
  return std::shared_ptr<Object>(std::shared_ptr<Object>(), objects_.back().get());
}

void Interpreter::write(const Text& text) {
  charge_bytes(text.size());
  if (out_->size() + text.size() > limits_.max_output_bytes) {
    error("the output is longer than {} bytes", limits_.max_output_bytes);
  }
  out_->append(text);
}

// --- Statements ---

Interpreter::Exit Interpreter::execute(const Block& block) {
  for (const StmtPtr& stmt : block) {
    const Exit exit = execute(*stmt);
    if (exit != Exit::kNone) return exit;
  }
  return Exit::kNone;
}

Interpreter::Exit Interpreter::execute(const Stmt& stmt) {
  const Depth depth(*this);
  charge(1);
  line_ = stmt.line;
  switch (stmt.kind) {
    case Stmt::Kind::kText:
      write(Text(stmt.text, Origin::kMarkup));
      break;
    case Stmt::Kind::kOutput:
      write(text(eval(*stmt.expr)));
      break;
    case Stmt::Kind::kIf:
      return execute(eval(*stmt.expr).truth() ? stmt.body : stmt.other);
    case Stmt::Kind::kFor:
      return execute_for(stmt, eval(*stmt.expr), 0);
    case Stmt::Kind::kSet:
      assign(stmt.target, eval(*stmt.expr));
      break;
    case Stmt::Kind::kSetBlock:
      execute_set_block(stmt);
      break;
    case Stmt::Kind::kMacro:
      scope_->set(stmt.name, make_macro(*this, stmt, scope_));
      break;
    case Stmt::Kind::kCallBlock:
      execute_call_block(stmt);
      break;
    case Stmt::Kind::kFilter: {
      const auto inner = std::make_shared<Scope>(Scope{scope_, {}});
      write(text(through_filters(*stmt.expr, capture(stmt.body, inner))));
      break;
    }
    case Stmt::Kind::kWith: {
      auto inner = std::make_shared<Scope>(Scope{scope_, {}});
      for (const auto& [target, expr] : stmt.assignments) {
        const Value value = eval(*expr);  // in the outer scope: the names are set together
        inner.swap(scope_);
        assign(target, value);
        inner.swap(scope_);
      }
      inner.swap(scope_);
      const Exit exit = execute(stmt.body);
      inner.swap(scope_);
      return exit;
    }
    case Stmt::Kind::kScope: {
      auto inner = std::make_shared<Scope>(Scope{scope_, {}});
      inner.swap(scope_);
      const Exit exit = execute(stmt.body);
      inner.swap(scope_);
      return exit;
    }
    case Stmt::Kind::kBreak:
      return Exit::kBreak;
    case Stmt::Kind::kContinue:
      return Exit::kContinue;
  }
  return Exit::kNone;
}

namespace {

// `loop` in a loop.
class Loop final : public Object {
 public:
  Loop(const Stmt& stmt, std::shared_ptr<Scope> scope, int depth)
      : stmt_(stmt), scope_(std::move(scope)), depth_(depth) {}

  void begin(const std::vector<Value>* items) { items_ = items; }
  void at(size_t index) { index_ = index; }

  std::string type_name() const override { return "LoopContext"; }
  bool callable() const override { return stmt_.recursive; }

  std::optional<Value> attribute(std::string_view name) override {
    if (items_ == nullptr) return std::nullopt;  // the loop is over
    const auto n = static_cast<int64_t>(items_->size());
    const auto i = static_cast<int64_t>(index_);
    if (name == "index") return Value(i + 1);
    if (name == "index0") return Value(i);
    if (name == "revindex") return Value(n - i);
    if (name == "revindex0") return Value(n - i - 1);
    if (name == "first") return Value(i == 0);
    if (name == "last") return Value(i + 1 == n);
    if (name == "length") return Value(n);
    if (name == "depth") return Value(int64_t{depth_} + 1);
    if (name == "depth0") return Value(int64_t{depth_});
    if (name == "previtem")
      return i > 0 ? (*items_)[index_ - 1] : Value::undefined("there is no previous item");
    if (name == "nextitem")
      return i + 1 < n ? (*items_)[index_ + 1] : Value::undefined("there is no next item");
    if (name == "cycle" || name == "changed") return Value(std::make_shared<Method>(*this, name == "cycle"));
    return std::nullopt;
  }

  Value call(Interpreter& interpreter, Arguments& arguments) override {
    const Parameters parameters(interpreter, "loop", arguments, {"iterable"});
    return interpreter.make(interpreter.run_loop(stmt_, parameters.need(0), scope_, depth_ + 1));
  }

 private:
  // Loops live as long as the render, so that a method may outlive its loop.
  class Method final : public Object {
   public:
    Method(Loop& loop, bool cycle) : loop_(loop), cycle_(cycle) {}
    std::string type_name() const override { return "method"; }
    bool callable() const override { return true; }
    Value call(Interpreter& interpreter, Arguments& arguments) override {
      if (cycle_) {
        if (arguments.positional.empty()) interpreter.error("loop.cycle: expected one value or more");
        return arguments.positional[loop_.index_ % arguments.positional.size()];
      }
      const bool same = loop_.last_ && loop_.last_->size() == arguments.positional.size() &&
                        std::equal(loop_.last_->begin(), loop_.last_->end(), arguments.positional.begin(),
                                   [&](const Value& a, const Value& b) { return interpreter.equals(a, b); });
      loop_.last_ = arguments.positional;
      return Value(!same);
    }

   private:
    Loop& loop_;
    bool cycle_;
  };

  const Stmt& stmt_;
  std::shared_ptr<Scope> scope_;
  int depth_;
  const std::vector<Value>* items_ = nullptr;
  size_t index_ = 0;
  std::optional<std::vector<Value>> last_;  // what `changed` saw
};

}  // namespace

Interpreter::Exit Interpreter::execute_for(const Stmt& stmt, const Value& iterable, int depth) {
  std::vector<Value> all = items(iterable);
  const std::shared_ptr<Scope> outer = scope_;
  const auto restore = [&] { scope_ = outer; };
  if (stmt.condition != nullptr) {
    std::vector<Value> chosen;
    for (const Value& item : all) {
      scope_ = std::make_shared<Scope>(Scope{outer, {}});
      assign(stmt.target, item);
      if (eval(*stmt.condition).truth()) chosen.push_back(item);
    }
    restore();
    all = std::move(chosen);
  }
  if (all.empty()) {
    scope_ = std::make_shared<Scope>(Scope{outer, {}});
    const Exit exit = execute(stmt.other);
    restore();
    return exit;
  }
  auto owned = std::make_unique<Loop>(stmt, outer, depth);
  Loop* loop = owned.get();
  const Value loop_value = adopt(std::move(owned));
  const int loop_name = name_of("loop");
  loop->begin(&all);
  for (size_t i = 0; i < all.size(); ++i) {
    charge(1);
    loop->at(i);
    scope_ = std::make_shared<Scope>(Scope{outer, {}});
    if (loop_name >= 0) scope_->set(loop_name, loop_value);
    assign(stmt.target, all[i]);
    if (execute(stmt.body) == Exit::kBreak) break;
  }
  loop->begin(nullptr);
  restore();
  return Exit::kNone;
}

Text Interpreter::run_loop(const Stmt& stmt, const Value& iterable, const std::shared_ptr<Scope>& scope,
                           int depth) {
  const Depth guard(*this);
  Text text;
  Text* out = std::exchange(out_, &text);
  std::shared_ptr<Scope> outer = std::exchange(scope_, scope);
  execute_for(stmt, iterable, depth);
  scope_ = std::move(outer);
  out_ = out;
  return text;
}

Text Interpreter::capture(const Block& body, const std::shared_ptr<Scope>& scope) {
  const Depth guard(*this);
  Text text;
  Text* out = std::exchange(out_, &text);
  std::shared_ptr<Scope> outer = std::exchange(scope_, scope);
  execute(body);
  scope_ = std::move(outer);
  out_ = out;
  return text;
}

void Interpreter::execute_set_block(const Stmt& stmt) {
  Value value = make(capture(stmt.body, std::make_shared<Scope>(Scope{scope_, {}})));
  if (stmt.expr != nullptr) value = through_filters(*stmt.expr, std::move(value));
  assign(stmt.target, value);
}

void Interpreter::execute_call_block(const Stmt& stmt) {
  const Expr& expr = *stmt.expr;
  const Value caller = make_macro(*this, stmt, scope_);
  const Value callee = eval(*expr.args[0]);
  Arguments arguments = eval_arguments(expr);
  arguments.named.emplace_back("caller", caller);
  write(text(call(callee, arguments)));
}

void Interpreter::assign(const Target& target, const Value& value) {
  if (!target.parts.empty()) {
    const std::vector<Value> parts = items(value);
    if (parts.size() != target.parts.size()) {
      error("expected {} values to unpack, got {}", target.parts.size(), parts.size());
    }
    for (size_t i = 0; i < parts.size(); ++i) assign(target.parts[i], parts[i]);
  } else if (target.attribute.empty()) {
    scope_->set(target.name, value);
  } else {
    const Value* owner = scope_->find(target.name);
    Object* object = owner != nullptr ? owner->object() : nullptr;
    if (object == nullptr || !object->set_attribute(target.attribute, value)) {
      error("{}.{}: only members of a namespace can be set, got {}", name(target.name), target.attribute,
            owner != nullptr ? owner->type_name() : "nothing");
    }
  }
}

// --- Expressions ---

Value Interpreter::evaluate(const Expr& expr, const std::shared_ptr<Scope>& scope) {
  std::shared_ptr<Scope> outer = std::exchange(scope_, scope);
  Value value = eval(expr);
  scope_ = std::move(outer);
  return value;
}

Value Interpreter::eval(const Expr& expr) {
  const Depth depth(*this);
  charge(1);
  line_ = expr.line;
  switch (expr.kind) {
    case Expr::Kind::kLiteral:
      return expr.value;
    case Expr::Kind::kName:
      return eval_name(expr);
    case Expr::Kind::kList:
    case Expr::Kind::kTuple: {
      std::vector<Value> values;
      for (const ExprPtr& arg : expr.args) values.push_back(eval(*arg));
      return make_list(std::move(values), expr.kind == Expr::Kind::kTuple);
    }
    case Expr::Kind::kDict: {
      Dict dict;
      for (size_t i = 0; i < expr.args.size(); i += 2) {
        const Value key = eval(*expr.args[i]);
        if (!dict.set(key, eval(*expr.args[i + 1]))) error("a {} cannot be a key", key.type_name());
      }
      return make(std::move(dict));
    }
    case Expr::Kind::kAttribute:
      return attribute(eval(*expr.args[0]), expr.text);
    case Expr::Kind::kItem: {
      const Value owner = eval(*expr.args[0]);
      return item(owner, eval(*expr.args[1]));
    }
    case Expr::Kind::kSlice: {
      const Value owner = eval(*expr.args[0]);
      const Value begin = eval_or_none(expr.args[1]);
      const Value end = eval_or_none(expr.args[2]);
      return slice(owner, begin, end, eval_or_none(expr.args[3]));
    }
    case Expr::Kind::kCall:
      return eval_call(expr);
    case Expr::Kind::kFilter:
      return eval_filter(expr, eval(*expr.args[0]));
    case Expr::Kind::kTest: {
      const Value value = eval(*expr.args[0]);
      Arguments arguments = eval_arguments(expr);
      return Value(test(expr.text, value, arguments));
    }
    case Expr::Kind::kNot:
      return Value(!eval(*expr.args[0]).truth());
    case Expr::Kind::kNegative:
      return negative(eval(*expr.args[0]));
    case Expr::Kind::kPositive: {
      const Value value = eval(*expr.args[0]);
      return binary("+", Value(int64_t{0}), value);
    }
    case Expr::Kind::kBinary:
      return eval_binary(expr);
    case Expr::Kind::kAnd:
    case Expr::Kind::kOr: {
      const bool stop_at = expr.kind == Expr::Kind::kOr;
      Value value;
      for (const ExprPtr& arg : expr.args) {
        value = eval(*arg);
        if (value.truth() == stop_at) break;
      }
      return value;
    }
    case Expr::Kind::kCompare:
      return eval_compare(expr);
    case Expr::Kind::kConcat: {
      Text joined;
      for (const ExprPtr& arg : expr.args) joined.append(text(eval(*arg)));
      return make(std::move(joined));
    }
    case Expr::Kind::kConditional: {
      if (eval(*expr.args[1]).truth()) return eval(*expr.args[0]);
      if (expr.args[2] != nullptr) return eval(*expr.args[2]);
      return Value::undefined("the condition of an inline if without else was false");
    }
  }
  return {};
}

Value Interpreter::eval_or_none(const ExprPtr& expr) { return expr != nullptr ? eval(*expr) : Value(None{}); }

Value Interpreter::eval_name(const Expr& expr) {
  const Value* value = scope_->find(expr.name);
  return value != nullptr ? *value : Value::undefined(fmt::format("'{}' is undefined", name(expr.name)));
}

Arguments Interpreter::eval_arguments(const Expr& expr) {
  Arguments arguments;
  for (size_t i = 1; i < expr.args.size(); ++i) arguments.positional.push_back(eval(*expr.args[i]));
  for (const auto& [key, value] : expr.named) arguments.named.emplace_back(key, eval(*value));
  return arguments;
}

Value Interpreter::eval_call(const Expr& expr) {
  const Expr& callee = *expr.args[0];
  if (callee.kind == Expr::Kind::kAttribute) {  // a method, without making an object of it
    const Value owner = eval(*callee.args[0]);
    if (has_method(owner, callee.text)) {
      const Arguments arguments = eval_arguments(expr);
      line_ = expr.line;
      return call_method(*this, owner, callee.text, arguments);
    }
    const Value function = attribute(owner, callee.text);
    Arguments arguments = eval_arguments(expr);
    line_ = expr.line;
    return call(function, arguments);
  }
  const Value function = eval(callee);
  Arguments arguments = eval_arguments(expr);
  line_ = expr.line;
  return call(function, arguments);
}

Value Interpreter::call(const Value& callee, Arguments& arguments) {
  const Depth depth(*this);
  if (callee.is_undefined()) undefined_error(callee);
  Object* object = callee.object();
  if (object == nullptr || !object->callable()) error("a {} cannot be called", callee.type_name());
  return object->call(*this, arguments);
}

Value Interpreter::eval_compare(const Expr& expr) {
  Value left = eval(*expr.args[0]);
  for (size_t i = 0; i < expr.ops.size(); ++i) {
    const Value right = eval(*expr.args[i + 1]);
    const std::string& op = expr.ops[i];
    bool holds = false;
    if (op == "==") {
      holds = equals(left, right);
    } else if (op == "!=") {
      holds = !equals(left, right);
    } else if (op == "in") {
      holds = contains(right, left);
    } else if (op == "not in") {
      holds = !contains(right, left);
    } else {
      const int sign = order(left, right);
      holds = op == "<" ? sign < 0 : op == "<=" ? sign <= 0 : op == ">" ? sign > 0 : sign >= 0;
    }
    if (!holds) return Value(false);
    left = right;
  }
  return Value(true);
}

Value Interpreter::eval_binary(const Expr& expr) {
  const Value left = eval(*expr.args[0]);
  const Value right = eval(*expr.args[1]);
  line_ = expr.line;
  return binary(expr.text, left, right);
}

Value Interpreter::eval_filter(const Expr& expr, Value value) {
  Arguments arguments = eval_arguments(expr);
  line_ = expr.line;
  return filter(expr.text, value, arguments);
}

Value Interpreter::through_filters(const Expr& chain, Value value) {
  const Depth depth(*this);
  if (chain.args[0] != nullptr) value = through_filters(*chain.args[0], std::move(value));
  return eval_filter(chain, std::move(value));
}

}  // namespace synod::jinja
