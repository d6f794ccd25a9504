/* The same in C: one question, the answer streamed to stdout.
 *   example_chat_c MODEL "question" */
#include <stdio.h>
#include <synod/synod.h>

static int32_t print_piece(void* user, synod_channel channel, const char* text, size_t n) {
  FILE* out = channel == SYNOD_CONTENT ? stdout : stderr;
  (void)user;
  fwrite(text, 1, n, out);
  fflush(out);
  return 1; /* 0 would cancel */
}

static int failed(const char* what, synod_status status) {
  fprintf(stderr, "%s: %s\n", what, synod_last_error());
  return (int)status;
}

int main(int argc, char** argv) {
  synod_model* model = NULL;
  synod_session* session = NULL;
  synod_generate_options options;
  synod_reply reply = {.size = sizeof(reply)};
  synod_status status;
  if (argc != 3) {
    fprintf(stderr, "usage: %s MODEL QUESTION\n", argv[0]);
    return 2;
  }
  status = synod_model_load(argv[1], NULL, &model);
  if (status != SYNOD_OK) return failed("load", status);
  status = synod_session_new(model, NULL, &session);
  synod_model_free(model); /* the session keeps what it needs */
  if (status != SYNOD_OK) return failed("session", status);

  synod_generate_options_init(&options);
  options.max_tokens = 64;
  status = synod_session_send(session, argv[2], &options, print_piece, NULL, &reply);
  if (status != SYNOD_OK) {
    synod_session_free(session);
    return failed("send", status);
  }
  printf("\n");
  fprintf(stderr, "%lld prompt tokens, %lld generated\n", (long long)reply.prompt_tokens,
          (long long)reply.completion_tokens);
  synod_session_free(session);
  return 0;
}
