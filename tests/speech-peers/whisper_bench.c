/* Times whisper.cpp: whisper-bench MODEL THREADS BEAM LANGUAGE FILE, then a line with the number of a round on stdin runs
 * it once and prints the seconds, a tab and the text. FILE holds mono 16 kHz samples as 32-bit floats. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "whisper.h"

static void quiet(enum ggml_log_level level, const char *text, void *data) {
    (void)level, (void)text, (void)data;
}

int main(int count, char **arguments) {
    if (count != 6) return 2;
    whisper_log_set(quiet, NULL);
    struct whisper_context_params context_params = whisper_context_default_params();
    context_params.use_gpu = false;
    struct whisper_context *context = whisper_init_from_file_with_params(arguments[1], context_params);
    FILE *file = fopen(arguments[5], "rb");
    if (!context || !file) return 1;
    fseek(file, 0, SEEK_END);
    long bytes = ftell(file);
    rewind(file);
    float *samples = malloc((size_t)bytes);
    if (fread(samples, 1, (size_t)bytes, file) != (size_t)bytes) return 1;
    int beam = atoi(arguments[3]);
    struct whisper_full_params params =
        whisper_full_default_params(beam > 1 ? WHISPER_SAMPLING_BEAM_SEARCH : WHISPER_SAMPLING_GREEDY);
    params.n_threads = atoi(arguments[2]);
    params.language = arguments[4];
    params.temperature = 0.0f;
    params.temperature_inc = 0.0f;
    params.greedy.best_of = 1;
    params.beam_search.beam_size = beam;
    params.no_context = false;
    params.print_progress = params.print_realtime = params.print_timestamps = params.print_special = false;
    char line[64];
    puts("ready");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        struct timespec begin, end;
        clock_gettime(CLOCK_MONOTONIC, &begin);
        if (whisper_full(context, params, samples, (int)(bytes / 4))) return 1;
        clock_gettime(CLOCK_MONOTONIC, &end);
        printf("%f\t", (double)(end.tv_sec - begin.tv_sec) + (double)(end.tv_nsec - begin.tv_nsec) / 1e9);
        for (int i = 0; i < whisper_full_n_segments(context); i++) fputs(whisper_full_get_segment_text(context, i), stdout);
        puts("");
        fflush(stdout);
    }
    return 0;
}
