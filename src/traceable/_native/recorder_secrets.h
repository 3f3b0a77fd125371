/* Hides secrets in the command line that a recording keeps: what `confidential.py` hides in the manifest, here with an
 * asterisk for each byte. tests/launch/test_secrets.py holds the two together.
 */
#ifndef TRACEABLE_RECORDER_SECRETS_H
#define TRACEABLE_RECORDER_SECRETS_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <strings.h>

static bool is_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static bool is_alphanumeric(char c) {
    return is_letter(c) || (c >= '0' && c <= '9');
}

static bool is_name_byte(char c) {
    return is_alphanumeric(c) || (c && strchr("_.-", c));
}

static bool is_blank(char c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static bool ends_like_a_secret(const char *part, size_t length) {
    static const char *const endings[] = {"key",    "token",      "secret", "secrets",    "password",
                                          "passwd", "passphrase", "pwd",    "credential", "credentials"};
    for (size_t number = 0; number < sizeof endings / sizeof *endings; number++) {
        size_t ending = strlen(endings[number]);
        if (length >= ending && !strncasecmp(part + length - ending, endings[number], ending))
            return true;
    }
    return false;
}

/* Whether a variable or an option of this name holds a secret. */
static bool is_secret(const char *name, size_t length) {
    if ((length == 3 && !memcmp(name, "PWD", 3)) || (length == 6 && !memcmp(name, "OLDPWD", 6)))
        return false;
    size_t begin = 0;
    for (size_t end = 0; end <= length; end++) {
        if (end < length && is_alphanumeric(name[end]))
            continue;
        if (ends_like_a_secret(name + begin, end - begin))
            return true;
        if (end < length)
            begin = end + 1;
    }
    size_t last = length - begin;
    bool among_others = begin >= 2 && is_alphanumeric(name[begin - 2]);
    return (last == 4 && among_others && !strncasecmp(name + begin, "pass", last)) ||
           (last == 13 && !strncasecmp(name + begin, "authorization", last));
}

/* Hides the password in each `scheme://user:password@host`. */
static void hide_logins(char *word) {
    for (char *login = strstr(word, "://"); login; login = strstr(login, "://")) {
        login += 3;
        char *password = login + strcspn(login, "/:@ \t\n\v\f\r");
        if (*password != ':')
            continue;
        password++;
        size_t length = strcspn(password, "/@ \t\n\v\f\r");
        if (password[length] == '@')
            memset(password, '*', length);
    }
}

/* Hides the value of each `NAME=value`, and of a word `Name: value`. What began the word goes on to its end. */
static void hide_values(char *word) {
    for (char *after = word; *after; after++) {
        bool header = *after == ':' && is_blank(after[1]);
        if (*after != '=' && !header)
            continue;
        char *name = after;
        while (name > word && is_name_byte(name[-1]))
            name--;
        bool whole = name == word;
        while (name < after && *name == '-')
            name++;
        if ((header && !whole) || !(is_letter(*name) || *name == '_') || !is_secret(name, (size_t)(after - name)))
            continue;
        char *value = after + 1;
        while (header && is_blank(*value))
            value++;
        size_t length = whole ? strlen(value) : strcspn(value, " \t\n\v\f\r,;&\"'");
        memset(value, '*', length);
        if (whole)
            return;
    }
}

/* Whether this word is an option whose value follows as the next one. */
static bool takes_secret(const char *word) {
    size_t dashes = strspn(word, "-");
    if (dashes < 1 || dashes > 2 || !is_letter(word[dashes]))
        return false;
    for (const char *byte = word + dashes; *byte; byte++)
        if (!is_name_byte(*byte))
            return false;
    return is_secret(word + dashes, strlen(word + dashes));
}

/* `command` holds words with a zero between two, and one behind the last. */
static void hide_secrets(char *command, size_t length) {
    const char *before = "";
    for (char *word = command; word < command + length; word += strlen(word) + 1) {
        if (takes_secret(before) && *word != '-')
            memset(word, '*', strlen(word));
        else if (strcmp(before, "-c"))
            hide_values(word);
        hide_logins(word);
        before = word;
    }
}

#endif
