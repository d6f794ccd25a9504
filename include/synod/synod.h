/* synod as a C library. Stable: functions are only added, structs grow at their end and start with their
 * size.
 *
 * Every function that can fail returns a synod_status, or NULL for pointers; synod_last_error() then has the
 * message for the calling thread. Nothing prints, reads the environment or ends the process. Strings are
 * UTF-8; those given back belong to the object they came from and live until its next call. See synod.hpp for
 * what things mean. */
#ifndef SYNOD_SYNOD_H
#define SYNOD_SYNOD_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SYNOD_C_API_VERSION 1

typedef enum synod_status {
  SYNOD_OK = 0,
  SYNOD_FAILURE = 1,
  SYNOD_USAGE = 2,
  SYNOD_BAD_FILE = 3,
  SYNOD_NO_MEMORY = 4,
  SYNOD_NOT_FOUND = 5,
  SYNOD_BUSY = 6
} synod_status;

typedef enum synod_channel { SYNOD_CONTENT = 0, SYNOD_REASONING = 1, SYNOD_TOOL_CALL = 2 } synod_channel;
typedef enum synod_finish { SYNOD_STOP = 0, SYNOD_LENGTH = 1, SYNOD_CANCELLED = 2 } synod_finish;

typedef struct synod_model synod_model;
typedef struct synod_session synod_session;

/* Fill with synod_load_options_init, then change what you need. */
typedef struct synod_load_options {
  size_t size;         /* sizeof(synod_load_options), set by init */
  const char* backend; /* "auto", "cuda", "cpu", "ref" */
  int32_t n_threads;
  int64_t context_length;
  int64_t cache_bytes;
  const char* cache_dir; /* NULL = none */
  int32_t force;
  /* Bytes done and in all; 0 ends the loading. May be NULL. */
  int32_t (*progress)(void* user, int64_t done, int64_t total);
  void* progress_user;
  const char* plugin_dir; /* where the CUDA plugin lies; NULL = beside the program or in its ../lib */
} synod_load_options;

typedef struct synod_generate_options {
  size_t size; /* sizeof(synod_generate_options), set by init */
  int64_t max_tokens;
  float temperature;
  int64_t top_k;
  float top_p;
  float min_p;
  float repetition_penalty;
  int64_t seed; /* -1 = a new one each time */
  int32_t reasoning;
  int64_t reasoning_budget;
  const char* const* stop; /* n_stop strings, or NULL */
  size_t n_stop;
} synod_generate_options;

typedef struct synod_model_info {
  size_t size; /* set by the caller: sizeof(synod_model_info) */
  const char* architecture;
  const char* name;
  int64_t n_layers, d_model, vocab_size, n_experts, n_experts_used, context_length, weight_bytes;
  int64_t planned_bytes; /* weights, one context's cache and scratch */
} synod_model_info;

typedef struct synod_reply {
  size_t size; /* set by the caller: sizeof(synod_reply) */
  const char* content;
  const char* reasoning;
  synod_finish finish;
  int64_t prompt_tokens, cached_tokens, completion_tokens;
  double prompt_seconds, decode_seconds;
  size_t n_tool_calls; /* see synod_session_tool_call */
} synod_reply;

/* `text` has `n` bytes and no terminating zero. 0 cancels. */
typedef int32_t (*synod_piece_callback)(void* user, synod_channel channel, const char* text, size_t n);

const char* synod_version(void);
const char* synod_last_error(void);

void synod_load_options_init(synod_load_options* options);
void synod_generate_options_init(synod_generate_options* options);

/* NULL options = defaults. */
synod_status synod_model_load(const char* path, const synod_load_options* options, synod_model** model);
void synod_model_free(synod_model* model); /* sessions keep what they need; NULL is allowed */
synod_status synod_model_get_info(synod_model* model, synod_model_info* info);
/* Writes at most `capacity` ids and sets the count of all; SYNOD_USAGE when they did not fit. */
synod_status synod_model_tokenize(synod_model* model, const char* text, int32_t* ids, size_t capacity,
                                  size_t* n);

synod_status synod_session_new(synod_model* model, const char* system_prompt, synod_session** session);
void synod_session_free(synod_session* session);
synod_status synod_session_send(synod_session* session, const char* message,
                                const synod_generate_options* options, synod_piece_callback on_piece,
                                void* user, synod_reply* reply);
synod_status synod_session_tool_call(synod_session* session, size_t index, const char** name,
                                     const char** arguments);
void synod_session_cancel(synod_session* session); /* any thread */
synod_status synod_session_save(synod_session* session, const char* path);
synod_status synod_session_restore(synod_session* session, const char* path);

#ifdef __cplusplus
}
#endif

#endif
