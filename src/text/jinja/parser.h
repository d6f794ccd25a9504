#pragma once

#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/lexer.h"

namespace synod::jinja {

// Throws kBadFile with the line. Expressions and blocks nest at most `max_depth` deep.
Program parse(const std::vector<Token>& tokens, int max_depth);

}  // namespace synod::jinja
