// One question to a model, with the answer streamed to stdout and reasoning to stderr.
//   example_chat MODEL "question"
#include <iostream>
#include <string>
#include <synod/synod.hpp>

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: " << argv[0] << " MODEL QUESTION\n";
    return 2;
  }
  try {
    synod::api::LoadOptions options;
    options.path = argv[1];
    const synod::api::Model model = synod::api::Model::load(options);
    std::cerr << model.info().name << ", " << model.info().n_layers << " layers, "
              << model.info().context_length << " tokens of context\n";

    synod::api::Session session = model.session("Answer in one sentence.");
    synod::api::GenerateOptions generate;
    generate.max_tokens = 64;
    const synod::api::Reply reply = session.send(argv[2], generate, [](const synod::api::Piece& piece) {
      (piece.channel == synod::api::Channel::kContent ? std::cout : std::cerr) << piece.text << std::flush;
      return true;  // false would cancel
    });
    std::cout << '\n';
    std::cerr << reply.prompt_tokens << " prompt tokens (" << reply.cached_tokens << " cached), "
              << reply.completion_tokens << " generated\n";
  } catch (const synod::api::Error& error) {
    std::cerr << "error: " << error.what() << '\n';
    return static_cast<int>(error.kind());
  }
  return 0;
}
