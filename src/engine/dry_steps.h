// Forward calls without bytes that together issue every op of a model: what a device collects its weights
// from.
#pragma once

#include "models/model.h"

namespace synod {

// A prompt that closes a compressed block of every ratio, and one decoded token. `dry` must be a dry backend.
void dry_steps(const Model& model, Backend& dry);

}  // namespace synod
