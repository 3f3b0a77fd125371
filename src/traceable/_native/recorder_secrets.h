#ifndef TRACEABLE_RECORDER_SECRETS_H
#define TRACEABLE_RECORDER_SECRETS_H

#include <stdbool.h>
#include <stddef.h>

/* Copies `command` to `shown` with an asterisk for each byte of a secret.
 *
 * It has words with a zero between two, and one after the last, which `length` may include or not. `cut`: the last word
 * may be incomplete. */
void hide_secrets(const char *command, size_t length, bool cut, char *shown);

#endif
