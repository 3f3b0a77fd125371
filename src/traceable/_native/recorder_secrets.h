#ifndef TRACEABLE_RECORDER_SECRETS_H
#define TRACEABLE_RECORDER_SECRETS_H

#include <stdbool.h>
#include <stddef.h>

/* Copies `command` to `shown` with an asterisk for each byte of a secret.
 *
 * It holds words with a zero between two, and one behind the last, which `length` may count or not. `cut`: the last word
 * may have gone on. */
void hide_secrets(const char *command, size_t length, bool cut, char *shown);

#endif
