/* team.c - normalize_host() on several threads.
 *
 * Happy path: the caller describes the batch and wakes the members; each, and the caller, normalises its images; the
 * last one to be done wakes the caller. What can fail: making a thread.
 * Threads: what members share is under the lock; the task lies still while `working` is not 0. */
#include "team.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"

struct team {
    unsigned threads, started;
    pthread_t members[TEAM_MAX]; /* but the caller */
    pthread_mutex_t lock;
    pthread_cond_t begin, done;
    uint64_t round; /* goes up with each batch */
    unsigned numbered, working;
    bool ended;
    struct normalize_params params;
    const uint8_t *in;
    uint8_t *out;
};

static void normalize_part(const struct team *team, unsigned number)
{
    const uint64_t batch = team->params.batch;
    const uint64_t first = batch * number / team->threads, end = batch * (number + 1) / team->threads;
    if (first == end)
        return;
    struct normalize_params params = team->params;
    params.batch = 1;
    const size_t in_bytes = (size_t)params.in_height * params.in_width * params.channels;
    const size_t out_bytes = normalize_bytes(&params);
    params.batch = (uint32_t)(end - first);
    normalize_host(&params, team->in + first * in_bytes, NULL, team->out + first * out_bytes);
}

static void *member(void *argument)
{
    struct team *team = argument;
    pthread_mutex_lock(&team->lock);
    const unsigned number = ++team->numbered; /* the caller is 0 */
    for (uint64_t round = 1;; round++) {
        while (team->round < round && !team->ended)
            pthread_cond_wait(&team->begin, &team->lock);
        if (team->ended)
            break;
        pthread_mutex_unlock(&team->lock);
        normalize_part(team, number);
        pthread_mutex_lock(&team->lock);
        if (--team->working == 0)
            pthread_cond_signal(&team->done);
    }
    pthread_mutex_unlock(&team->lock);
    return NULL;
}

int team_new(unsigned threads, struct team **out, struct feedd_error *err)
{
    struct team *team = calloc(1, sizeof(*team));
    if (team == NULL)
        return error_set(err, FEEDD_E_MEMORY, "out of memory");
    team->threads = threads;
    pthread_mutex_init(&team->lock, NULL);
    pthread_cond_init(&team->begin, NULL);
    pthread_cond_init(&team->done, NULL);
    while (team->started + 1 < threads) {
        const int error = pthread_create(&team->members[team->started], NULL, member, team);
        if (error != 0) {
            error_set(err, FEEDD_E_LIMIT, "%u threads: one can't be made: %s", threads, strerror(error));
            team_free(team);
            return FEEDD_E_LIMIT;
        }
        team->started++;
    }
    *out = team;
    return 0;
}

void team_free(struct team *team)
{
    pthread_mutex_lock(&team->lock);
    team->ended = true;
    pthread_cond_broadcast(&team->begin);
    pthread_mutex_unlock(&team->lock);
    for (unsigned i = 0; i < team->started; i++)
        pthread_join(team->members[i], NULL);
    pthread_cond_destroy(&team->begin);
    pthread_cond_destroy(&team->done);
    pthread_mutex_destroy(&team->lock);
    free(team);
}

void team_normalize(struct team *team, const struct normalize_params *params, const uint8_t *in, void *out)
{
    pthread_mutex_lock(&team->lock);
    team->params = *params;
    team->in = in;
    team->out = out;
    team->working = team->started;
    team->round++;
    pthread_cond_broadcast(&team->begin);
    pthread_mutex_unlock(&team->lock);
    normalize_part(team, 0);
    pthread_mutex_lock(&team->lock);
    while (team->working > 0)
        pthread_cond_wait(&team->done, &team->lock);
    pthread_mutex_unlock(&team->lock);
}
