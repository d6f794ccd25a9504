// Recursive descent with Jinja's precedence: conditional, or, and, not, comparison, + -, ~, * / // %, **,
// sign, then calls, members, filters and tests.
#include "text/jinja/parser.h"

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <unordered_map>

#include "base/error.h"

namespace synod::jinja {
namespace {

using Kind = Token::Kind;

class Parser {
 public:
  Parser(const std::vector<Token>& tokens, int max_depth) : tokens_(tokens), max_depth_(max_depth) {}

  Program run() {
    Program program;
    program.body = block({});
    program.names = std::move(names_);
    return program;
  }

 private:
  // Counts nesting while it lives.
  class Nest {
   public:
    explicit Nest(Parser& parser) : parser_(parser) {
      if (++parser_.depth_ > parser_.max_depth_) {
        syntax_error(parser_.here().line, fmt::format("nested more than {} deep", parser_.max_depth_));
      }
    }
    ~Nest() { --parser_.depth_; }
    Nest(const Nest&) = delete;
    Nest& operator=(const Nest&) = delete;

   private:
    Parser& parser_;
  };

  const Token& here() const { return tokens_[at_]; }
  const Token& ahead(size_t n) const { return tokens_[std::min(at_ + n, tokens_.size() - 1)]; }
  bool is(Kind kind) const { return here().kind == kind; }
  bool is_op(std::string_view text) const { return is(Kind::kOperator) && here().text == text; }
  bool is_word(std::string_view text) const { return is(Kind::kName) && here().text == text; }
  const Token& next() {
    const Token& token = tokens_[at_];
    if (token.kind != Kind::kEnd) ++at_;
    return token;
  }
  bool take_op(std::string_view text) {
    if (!is_op(text)) return false;
    next();
    return true;
  }
  bool take_word(std::string_view text) {
    if (!is_word(text)) return false;
    next();
    return true;
  }
  std::string shown() const {
    switch (here().kind) {
      case Kind::kEnd:
        return "the end of the template";
      case Kind::kData:
        return "text";
      case Kind::kOutputBegin:
        return "{{";
      case Kind::kOutputEnd:
        return "}}";
      case Kind::kBlockBegin:
        return "{%";
      case Kind::kBlockEnd:
        return "%}";
      case Kind::kString:
        return "a string";
      default:
        return "'" + here().text.substr(0, 40) + "'";
    }
  }
  [[noreturn]] void expected(std::string_view what) const {
    syntax_error(here().line, fmt::format("expected {}, got {}", what, shown()));
  }
  void need_op(std::string_view text) {
    if (!take_op(text)) expected(fmt::format("'{}'", text));
  }
  void need_word(std::string_view text) {
    if (!take_word(text)) expected(fmt::format("'{}'", text));
  }
  void need(Kind kind, std::string_view what) {
    if (!is(kind)) expected(what);
    next();
  }

  int intern(const std::string& name) {
    const auto [found, is_new] = name_ids_.emplace(name, static_cast<int>(names_.size()));
    if (is_new) names_.push_back(name);
    return found->second;
  }
  int name(std::string_view what) {
    if (!is(Kind::kName)) expected(what);
    if (is_reserved(here().text)) expected(what);
    return intern(next().text);
  }
  static bool is_reserved(std::string_view word) {
    for (const std::string_view reserved :
         {"and", "or", "not", "in", "is", "if", "else", "true", "false", "none", "True", "False", "None"}) {
      if (word == reserved) return true;
    }
    return false;
  }

  ExprPtr make(Expr::Kind kind) const {
    return std::make_unique<Expr>(Expr{.kind = kind, .line = here().line});
  }

  // --- Statements ---

  // Until {% one of `ends` %}, whose name is left to the caller; until the end of the template without.
  Block block(std::initializer_list<std::string_view> ends) {
    const Nest nest(*this);
    Block body;
    while (true) {
      const int line = here().line;
      if (is(Kind::kEnd)) {
        if (ends.size() == 0) return body;
        expected(fmt::format("{{% {} %}}", *(ends.end() - 1)));
      }
      if (is(Kind::kData)) {
        body.push_back(statement(Stmt::Kind::kText, line));
        body.back()->text = next().text;
      } else if (is(Kind::kOutputBegin)) {
        next();
        body.push_back(statement(Stmt::Kind::kOutput, line));
        body.back()->expr = tuple();
        need(Kind::kOutputEnd, "}}");
      } else {
        need(Kind::kBlockBegin, "{%");
        if (!is(Kind::kName)) expected("the name of a tag");
        if (std::find(ends.begin(), ends.end(), here().text) != ends.end()) return body;
        body.push_back(tag());
      }
    }
  }

  static StmtPtr statement(Stmt::Kind kind, int line) {
    return std::make_unique<Stmt>(Stmt{.kind = kind, .line = line});
  }

  void end_tag(std::string_view word) {
    need_word(word);
    end_of_tag();
  }
  void end_of_tag() { need(Kind::kBlockEnd, "%}"); }

  StmtPtr tag() {
    const int line = here().line;
    const std::string word = next().text;
    if (word == "if") return if_tag(line);
    if (word == "for") return for_tag(line);
    if (word == "set") return set_tag(line);
    if (word == "macro") return macro_tag(line);
    if (word == "call") return call_tag(line);
    if (word == "filter") return filter_tag(line);
    if (word == "with") return with_tag(line);
    if (word == "break" || word == "continue") {
      if (loops_ == 0) syntax_error(line, fmt::format("{} outside a loop", word));
      end_of_tag();
      return statement(word == "break" ? Stmt::Kind::kBreak : Stmt::Kind::kContinue, line);
    }
    if (word == "generation") {  // marks the assistant's tokens for training; prints its body
      end_of_tag();
      auto stmt = statement(Stmt::Kind::kScope, line);
      stmt->body = block({"endgeneration"});
      end_tag("endgeneration");
      return stmt;
    }
    for (const std::string_view known :
         {"include", "import", "from", "extends", "block", "do", "trans", "autoescape"}) {
      if (word == known)
        syntax_error(line, fmt::format("the tag '{}' is not supported in chat templates", word));
    }
    syntax_error(line, fmt::format("unknown tag '{}'", word.substr(0, 40)));
  }

  StmtPtr if_tag(int line) {
    auto first = statement(Stmt::Kind::kIf, line);
    Stmt* stmt = first.get();
    int branches = 0;  // they nest in the tree
    while (true) {
      stmt->expr = tuple(/*conditional=*/false);
      end_of_tag();
      stmt->body = block({"elif", "else", "endif"});
      if (!take_word("elif")) break;
      stmt->other.push_back(statement(Stmt::Kind::kIf, here().line));
      stmt = stmt->other.back().get();
      if (depth_ + ++branches > max_depth_) syntax_error(here().line, "an if with too many branches");
    }
    if (take_word("else")) {
      end_of_tag();
      stmt->other = block({"endif"});
    }
    end_tag("endif");
    return first;
  }

  StmtPtr for_tag(int line) {
    auto stmt = statement(Stmt::Kind::kFor, line);
    stmt->target = target(/*members=*/false);
    need_word("in");
    stmt->expr = tuple(/*conditional=*/false);
    if (take_word("if")) stmt->condition = expression();
    stmt->recursive = take_word("recursive");
    end_of_tag();
    ++loops_;
    stmt->body = block({"else", "endfor"});
    --loops_;
    if (take_word("else")) {
      end_of_tag();
      stmt->other = block({"endfor"});
    }
    end_tag("endfor");
    return stmt;
  }

  StmtPtr set_tag(int line) {
    Target to = target(/*members=*/true);
    if (take_op("=")) {
      auto stmt = statement(Stmt::Kind::kSet, line);
      stmt->target = std::move(to);
      stmt->expr = tuple();
      end_of_tag();
      return stmt;
    }
    auto stmt = statement(Stmt::Kind::kSetBlock, line);
    stmt->target = std::move(to);
    if (is_op("|")) stmt->expr = filters(nullptr);
    end_of_tag();
    stmt->body = block({"endset"});
    end_tag("endset");
    return stmt;
  }

  // Loops outside a macro are not its loops.
  Block macro_body(std::string_view end) {
    const int loops = loops_;
    loops_ = 0;
    Block body = block({end});
    loops_ = loops;
    end_tag(end);
    return body;
  }

  StmtPtr macro_tag(int line) {
    auto stmt = statement(Stmt::Kind::kMacro, line);
    stmt->name = name("the name of a macro");
    const size_t begin = at_;
    parameters(*stmt);
    end_of_tag();
    stmt->body = macro_body("endmacro");
    note_uses(*stmt, begin);
    return stmt;
  }

  StmtPtr call_tag(int line) {
    auto stmt = statement(Stmt::Kind::kCallBlock, line);
    const size_t begin = at_;
    if (is_op("(")) parameters(*stmt);
    stmt->expr = postfix_only();
    if (stmt->expr->kind != Expr::Kind::kCall) expected("a call");
    end_of_tag();
    stmt->body = macro_body("endcall");
    note_uses(*stmt, begin);
    return stmt;
  }

  void note_uses(Stmt& stmt, size_t begin) const {
    for (size_t i = begin; i < at_; ++i) {
      if (tokens_[i].kind != Kind::kName) continue;
      stmt.uses_caller |= tokens_[i].text == "caller";
      stmt.uses_varargs |= tokens_[i].text == "varargs";
      stmt.uses_kwargs |= tokens_[i].text == "kwargs";
    }
  }

  void parameters(Stmt& stmt) {
    need_op("(");
    while (!take_op(")")) {
      if (!stmt.parameters.empty()) need_op(",");
      if (take_op(")")) return;
      const int parameter = name("the name of a parameter");
      ExprPtr fallback;
      if (take_op("=")) {
        fallback = expression();
      } else if (!stmt.parameters.empty() && stmt.parameters.back().fallback != nullptr) {
        expected("a default value, as the parameter before has one");
      }
      stmt.parameters.push_back({parameter, std::move(fallback)});
    }
  }

  StmtPtr filter_tag(int line) {
    auto stmt = statement(Stmt::Kind::kFilter, line);
    stmt->expr = filter_chain_from_name();
    end_of_tag();
    stmt->body = block({"endfilter"});
    end_tag("endfilter");
    return stmt;
  }

  StmtPtr with_tag(int line) {
    auto stmt = statement(Stmt::Kind::kWith, line);
    while (!is(Kind::kBlockEnd)) {
      if (!stmt->assignments.empty()) need_op(",");
      Target to = target(/*members=*/false);
      need_op("=");
      stmt->assignments.emplace_back(std::move(to), expression());
    }
    end_of_tag();
    stmt->body = block({"endwith"});
    end_tag("endwith");
    return stmt;
  }

  Target target(bool members) {
    std::vector<Target> parts;
    bool several = false;
    do {
      if (!parts.empty() && !(is(Kind::kName) || is_op("("))) break;  // a comma at the end
      parts.push_back(single_target(members));
      if (is_op(",")) several = true;
    } while (take_op(","));
    if (!several) return std::move(parts[0]);
    Target all;
    all.parts = std::move(parts);
    return all;
  }

  Target single_target(bool members) {
    const Nest nest(*this);
    if (take_op("(")) {
      Target inner = target(false);
      need_op(")");
      return inner;
    }
    Target to;
    to.name = name("a name to assign to");
    if (members && take_op(".")) {
      if (!is(Kind::kName)) expected("the name of a member");
      to.attribute = next().text;
    }
    return to;
  }

  // --- Expressions ---

  // One expression, or several with commas: a tuple.
  ExprPtr tuple(bool conditional = true) {
    const auto one = [&] { return conditional ? expression() : or_expr(); };
    auto first = one();
    if (!is_op(",")) return first;
    auto all = make(Expr::Kind::kTuple);
    all->args.push_back(std::move(first));
    while (take_op(",")) {
      if (is(Kind::kOutputEnd) || is(Kind::kBlockEnd) || is_op(")") || is_op("]") || is_word("if") ||
          is_word("recursive")) {
        break;
      }
      all->args.push_back(one());
    }
    return all;
  }

  ExprPtr expression() {
    const Nest nest(*this);
    auto value = or_expr();
    int links = 0;
    while (is_word("if")) {
      if (depth_ + ++links > max_depth_) syntax_error(here().line, "an expression with too many conditions");
      auto choice = make(Expr::Kind::kConditional);
      next();
      choice->args.push_back(std::move(value));
      choice->args.push_back(or_expr());
      choice->args.push_back(take_word("else") ? expression() : nullptr);
      value = std::move(choice);
    }
    return value;
  }

  ExprPtr or_expr() {
    const Nest nest(*this);
    auto left = and_expr();
    while (is_word("or")) left = joined(Expr::Kind::kOr, std::move(left), [&] { return and_expr(); });
    return left;
  }

  ExprPtr and_expr() {
    auto left = not_expr();
    while (is_word("and")) left = joined(Expr::Kind::kAnd, std::move(left), [&] { return not_expr(); });
    return left;
  }

  // `left` and what follows the operator. A chain is a list in a tree that must not grow deep: `a + b + c`
  // nests to the left, once per operator.
  template <typename Right>
  ExprPtr joined(Expr::Kind kind, ExprPtr left, Right&& right) {
    if (left->kind == kind && (kind == Expr::Kind::kOr || kind == Expr::Kind::kAnd)) {
      next();
      left->args.push_back(right());
      return left;
    }
    auto both = make(kind);
    both->text = next().text;
    both->args.push_back(std::move(left));
    both->args.push_back(right());
    return both;
  }

  ExprPtr not_expr() {
    if (!is_word("not")) return compare_expr();
    const Nest nest(*this);
    auto inverse = make(Expr::Kind::kNot);
    next();
    inverse->args.push_back(not_expr());
    return inverse;
  }

  ExprPtr compare_expr() {
    auto left = sum();
    ExprPtr chain;
    while (true) {
      std::string op;
      for (const std::string_view text : {"==", "!=", "<", "<=", ">", ">="}) {
        if (is_op(text)) op = text;
      }
      if (is_word("in")) op = "in";
      if (is_word("not") && ahead(1).kind == Kind::kName && ahead(1).text == "in") {
        op = "not in";
        next();
      }
      if (op.empty()) break;
      if (chain == nullptr) {
        chain = make(Expr::Kind::kCompare);
        chain->args.push_back(std::move(left));
      }
      next();
      chain->ops.push_back(op);
      chain->args.push_back(sum());
    }
    return chain != nullptr ? std::move(chain) : std::move(left);
  }

  // A chain of left-associative operators; each link is a level of the tree, so it counts as depth.
  template <typename Operand>
  ExprPtr chain(std::initializer_list<std::string_view> ops, Operand&& operand) {
    auto left = operand();
    int links = 0;
    while (std::any_of(ops.begin(), ops.end(), [&](std::string_view op) { return is_op(op); })) {
      if (depth_ + ++links > max_depth_) syntax_error(here().line, "an expression with too many operators");
      left = joined(Expr::Kind::kBinary, std::move(left), operand);
    }
    return left;
  }

  ExprPtr sum() {
    return chain({"+", "-"}, [&] { return concat(); });
  }

  ExprPtr concat() {
    auto first = product();
    if (!is_op("~")) return first;
    auto all = make(Expr::Kind::kConcat);
    all->args.push_back(std::move(first));
    while (take_op("~")) all->args.push_back(product());
    return all;
  }

  ExprPtr product() {
    return chain({"*", "/", "//", "%"}, [&] { return chain({"**"}, [&] { return unary(true); }); });
  }

  ExprPtr unary(bool with_filters) {
    const Nest nest(*this);
    ExprPtr value;
    if (is_op("-") || is_op("+")) {
      value = make(is_op("-") ? Expr::Kind::kNegative : Expr::Kind::kPositive);
      next();
      value->args.push_back(unary(false));
    } else {
      value = primary();
    }
    value = postfix(std::move(value));
    return with_filters ? filters(std::move(value)) : std::move(value);
  }

  ExprPtr postfix_only() {
    const Nest nest(*this);
    return postfix(primary());
  }

  ExprPtr postfix(ExprPtr value) {
    int links = 0;
    while (is_op(".") || is_op("[") || is_op("(")) {
      if (depth_ + ++links > max_depth_) syntax_error(here().line, "an expression with too many members");
      if (is_op("(")) {
        value = call(std::move(value));
      } else if (is_op(".")) {
        next();
        if (is(Kind::kInteger)) {
          auto item = make(Expr::Kind::kItem);
          item->args.push_back(std::move(value));
          item->args.push_back(primary());
          value = std::move(item);
          continue;
        }
        if (!is(Kind::kName)) expected("the name of a member");
        auto member = make(Expr::Kind::kAttribute);
        member->text = next().text;
        member->args.push_back(std::move(value));
        value = std::move(member);
      } else {
        value = subscript(std::move(value));
      }
    }
    return value;
  }

  ExprPtr subscript(ExprPtr value) {
    auto item = make(Expr::Kind::kItem);
    need_op("[");
    item->args.push_back(std::move(value));
    const auto ends = [&] { return is_op(":") || is_op("]"); };
    ExprPtr first = ends() ? nullptr : tuple();
    if (!is_op(":")) {
      if (first == nullptr) expected("an index");
      item->args.push_back(std::move(first));
      need_op("]");
      return item;
    }
    item->kind = Expr::Kind::kSlice;
    item->args.push_back(std::move(first));
    next();
    item->args.push_back(ends() ? nullptr : expression());
    item->args.push_back(nullptr);
    if (take_op(":") && !is_op("]")) item->args.back() = expression();
    need_op("]");
    return item;
  }

  ExprPtr call(ExprPtr callee) {
    auto result = make(Expr::Kind::kCall);
    result->args.push_back(std::move(callee));
    arguments(*result);
    return result;
  }

  void arguments(Expr& to) {
    need_op("(");
    bool first = true;
    while (!take_op(")")) {
      if (!first) need_op(",");
      first = false;
      if (take_op(")")) return;
      if (is_op("*") || is_op("**")) expected("an argument (unpacking is not supported)");
      if (is(Kind::kName) && ahead(1).kind == Kind::kOperator && ahead(1).text == "=") {
        std::string key = next().text;
        next();
        to.named.emplace_back(std::move(key), expression());
      } else {
        if (!to.named.empty()) expected("a named argument after a named one");
        to.args.push_back(expression());
      }
    }
  }

  ExprPtr filters(ExprPtr value) {
    int links = 0;
    while (true) {
      if (depth_ + ++links > max_depth_) syntax_error(here().line, "an expression with too many filters");
      if (take_op("|")) {
        value = one_filter(std::move(value));
      } else if (is_word("is")) {
        value = test(std::move(value));
      } else if (is_op("(")) {
        value = call(std::move(value));
      } else {
        return value;
      }
    }
  }

  ExprPtr one_filter(ExprPtr value) {
    if (!is(Kind::kName)) expected("the name of a filter");
    auto filter = make(Expr::Kind::kFilter);
    filter->text = next().text;
    filter->args.push_back(std::move(value));
    if (is_op("(")) arguments(*filter);
    return filter;
  }

  // {% filter upper | trim %}
  ExprPtr filter_chain_from_name() {
    ExprPtr chain = one_filter(nullptr);
    while (take_op("|")) chain = one_filter(std::move(chain));
    return chain;
  }

  ExprPtr test(ExprPtr value) {
    need_word("is");
    const bool negated = take_word("not");
    if (!is(Kind::kName)) expected("the name of a test");
    auto check = make(Expr::Kind::kTest);
    check->text = next().text;
    check->args.push_back(std::move(value));
    const bool argument_follows =
        is(Kind::kString) || is(Kind::kInteger) || is(Kind::kFloat) || is_op("[") || is_op("{") ||
        (is(Kind::kName) && !is_word("else") && !is_word("or") && !is_word("and") && !is_word("is") &&
         !is_word("if") && !is_word("in") && !is_word("not") && !is_word("recursive"));
    if (is_op("(")) {
      arguments(*check);
    } else if (argument_follows) {
      const Nest nest(*this);
      check->args.push_back(postfix(primary()));
    }
    if (!negated) return check;
    auto inverse = make(Expr::Kind::kNot);
    inverse->args.push_back(std::move(check));
    return inverse;
  }

  ExprPtr literal(Value value) {
    auto result = make(Expr::Kind::kLiteral);
    result->value = std::move(value);
    next();
    return result;
  }

  ExprPtr primary() {
    const Nest nest(*this);
    switch (here().kind) {
      case Kind::kString: {
        std::string text;
        auto result = make(Expr::Kind::kLiteral);
        while (is(Kind::kString)) text += next().text;  // neighbours join
        result->value = Value::markup(std::move(text));
        return result;
      }
      case Kind::kInteger:
        return literal(integer());
      case Kind::kFloat:
        return literal(Value(std::strtod(here().text.c_str(), nullptr)));
      case Kind::kName: {
        const std::string& word = here().text;
        if (word == "true" || word == "True") return literal(Value(true));
        if (word == "false" || word == "False") return literal(Value(false));
        if (word == "none" || word == "None") return literal(None{});
        auto result = make(Expr::Kind::kName);
        result->name = name("an expression");
        return result;
      }
      default:
        break;
    }
    if (is_op("(")) return parenthesis();
    if (is_op("[")) return list();
    if (is_op("{")) return dict();
    expected("an expression");
  }

  Value integer() const {
    const std::string& text = here().text;
    const bool hex = text.starts_with("0x");
    int64_t value = 0;
    const auto [end, error] =
        std::from_chars(text.data() + (hex ? 2 : 0), text.data() + text.size(), value, hex ? 16 : 10);
    if (error != std::errc() || end != text.data() + text.size()) {
      syntax_error(here().line, fmt::format("the number {} does not fit 64 bits", text.substr(0, 40)));
    }
    return Value(value);
  }

  ExprPtr parenthesis() {
    auto empty = make(Expr::Kind::kTuple);
    need_op("(");
    if (take_op(")")) return empty;
    auto value = tuple();
    need_op(")");
    return value;
  }

  ExprPtr list() {
    auto result = make(Expr::Kind::kList);
    need_op("[");
    while (!take_op("]")) {
      if (!result->args.empty()) need_op(",");
      if (take_op("]")) break;
      result->args.push_back(expression());
    }
    return result;
  }

  ExprPtr dict() {
    auto result = make(Expr::Kind::kDict);
    need_op("{");
    while (!take_op("}")) {
      if (!result->args.empty()) need_op(",");
      if (take_op("}")) break;
      result->args.push_back(expression());
      need_op(":");
      result->args.push_back(expression());
    }
    return result;
  }

  const std::vector<Token>& tokens_;
  size_t at_ = 0;
  int depth_ = 0;
  int max_depth_;
  int loops_ = 0;
  std::vector<std::string> names_;
  std::unordered_map<std::string, int> name_ids_;
};

}  // namespace

Program parse(const std::vector<Token>& tokens, int max_depth) { return Parser(tokens, max_depth).run(); }

}  // namespace synod::jinja
