// The tree of a template. Names are numbers into Program::names, so that scopes compare integers.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja/value.h"

namespace synod::jinja {

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct Expr {
  enum class Kind {
    kLiteral,    // `value`
    kName,       // `name`
    kList,       // `args`
    kTuple,      // `args`
    kDict,       // `args`: key, value, key, value, ...
    kAttribute,  // args[0].text
    kItem,       // args[0][args[1]]
    kSlice,      // args[0][args[1]:args[2]:args[3]], the last three may be null
    kCall,       // args[0](args[1..], named)
    kFilter,     // args[0] | text(args[1..], named); args[0] is null where a block is filtered
    kTest,       // args[0] is text(args[1..])
    kNot,
    kNegative,
    kPositive,
    kBinary,  // args[0] text args[1]: + - * / // % **
    kAnd,
    kOr,
    kCompare,      // args[0] ops[0] args[1] ops[1] args[2] ...
    kConcat,       // all `args` as text
    kConditional,  // args[0] if args[1] else args[2], which may be null
  };
  Kind kind;
  int line;
  int name = -1;
  std::string text = {};
  Value value = {};
  std::vector<ExprPtr> args = {};
  std::vector<std::pair<std::string, ExprPtr>> named = {};
  std::vector<std::string> ops = {};  // "==", "in", "not in", ...
};

struct Stmt;
using StmtPtr = std::unique_ptr<Stmt>;
using Block = std::vector<StmtPtr>;

// Where a value goes: a name, a member of a namespace, or several of these.
struct Target {
  int name = -1;
  std::string attribute = {};
  std::vector<Target> parts = {};
};

struct Parameter {
  int name;
  ExprPtr fallback;  // may be null
};

struct Stmt {
  enum class Kind {
    kText,       // `text`
    kOutput,     // `expr`
    kIf,         // `expr`, `body`, `other`
    kFor,        // `target` in `expr` if `condition`: `body` else `other`
    kSet,        // `target` = `expr`
    kSetBlock,   // `target` = `body`, through the filters of `expr` if not null
    kMacro,      // `name` (`parameters`): `body`
    kCallBlock,  // `expr` is a call, `body` its caller (`parameters`)
    kFilter,     // `body` through the filters of `expr`
    kWith,       // `assignments`, `body`
    kScope,      // `body`: generation, autoescape
    kBreak,
    kContinue,
  };
  Kind kind;
  int line;
  std::string text = {};
  int name = -1;
  bool recursive = false;     // kFor
  bool uses_caller = false;   // kMacro
  bool uses_varargs = false;  // kMacro, kCallBlock
  bool uses_kwargs = false;
  ExprPtr expr = nullptr;
  ExprPtr condition = nullptr;
  Target target = {};
  std::vector<Parameter> parameters = {};
  std::vector<std::pair<Target, ExprPtr>> assignments = {};
  Block body = {};
  Block other = {};
};

struct Program {
  Block body;
  std::vector<std::string> names;
};

}  // namespace synod::jinja
