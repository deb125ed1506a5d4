// One kernel y[i] = 2 * x[i] that misbehaves as the whole number x[0] says; 0 is honest.
// Each branch does one thing that a worker must notice; tests/test_native.py holds what is expected.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <fenv.h>
#include <locale.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum {
  HONEST, NULL_WRITE, DIVIDE_BY_ZERO, ABORTS, ILLEGAL, BUS, RECURSES, EXITS, QUITS, KILLS_ITSELF, TERMINATES,
  SPINS, SLEEPS, STOPS, DEADLOCK, PAUSES_BLOCKED, KEEPS_MEMORY, KEEPS_FILE, KEEPS_THREAD, KEEPS_CHILD, FORKS_ON,
  WRITES_PAST, WRITES_BEFORE, WRITES_FAR, READS_PAST, READS_BEFORE, WRITES_PAST_INPUT, SKIPS_LAST, SKIPS_ALL,
  SKIPS_ODD, CHANGES_INPUT, CHANGES_DIRECTORY, ROUNDS_UP, ROUNDS_TO_ZERO, FLUSHES, TRAPS, BLOCKS_SIGNALS,
  IGNORES_SIGNALS, HANDLES_SIGNALS, SETS_ALARM, MASKS_FILES, SETS_LOCALE, ONE_PROCESSOR, LIMITS_FILES, COUNTS_CALLS,
  WRITES_LATE, FREES_TWICE, SMASHES_HEAP, NO_MEMORY, CLOSES_ALL, SPEAKS_PROTOCOL, PRINTS, POISONS_NEXT, KINDS
};

static volatile int one = 1, zero;
static void *volatile sink;
static int calls, poisoned;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int deeper(volatile char *seen) {
  volatile char room[1 << 16];
  room[0] = seen[0];
  return deeper(room) + room[0];
}

static void *wait_long(void *unused) {
  sleep(30);
  return unused;
}

static void *scribble(void *where) {
  usleep(50000);
  ((float *)where)[0] = -1;
  return NULL;
}

static void ignore(int unused) { (void)unused; }

static void thread(void *(*body)(void *), void *argument) {
  pthread_t made;
  if (!pthread_create(&made, NULL, body, argument)) pthread_detach(made);
}

static void twice(const float *x, float *y, size_t n) {
  for (size_t i = 0; i < n; i++) y[i] = 2 * x[i];
}

static void bus_error(void) {
  int fd = memfd_create("short", 0);
  volatile char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  page[0] = 1;
}

static void before_computing(int kind, const float *x) {
  char start = 1;
  if (kind == SPINS) for (;;) __asm__ volatile("");
  if (kind == SLEEPS) sleep(60);
  if (kind == STOPS) raise(SIGSTOP);
  if (kind == DEADLOCK) { pthread_mutex_lock(&lock); pthread_mutex_lock(&lock); }
  if (kind == PAUSES_BLOCKED) {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    for (;;) pause();
  }
  if (kind == RECURSES) deeper(&start);
  if (kind == CHANGES_INPUT) ((float *)x)[1] = 7;
  if (kind == NO_MEMORY && !(sink = malloc((size_t)1 << 42))) { fprintf(stderr, "kernel: out of memory\n"); abort(); }
}

static void misbehave(int kind, const float *x, float *y, size_t n) {
  volatile float seen;
  struct itimerval soon = {{0, 0}, {100, 0}};
  struct rlimit few = {64, 64};
  sigset_t some;
  cpu_set_t here;
  switch (kind) {
    case NULL_WRITE: *(volatile int *)8 = 1; break;
    case DIVIDE_BY_ZERO: zero = one / zero; break;
    case ABORTS: abort();
    case ILLEGAL: __builtin_trap();
    case BUS: bus_error(); break;
    case EXITS: exit(3);
    case QUITS: _exit(0);
    case KILLS_ITSELF: raise(SIGKILL); break;
    case TERMINATES: raise(SIGTERM); break;
    case KEEPS_MEMORY: memset(sink = malloc(1 << 20), 1, 1 << 20); break;
    case KEEPS_FILE: if (open("/dev/null", O_RDONLY) < 0) abort(); break;
    case KEEPS_THREAD: thread(wait_long, NULL); break;
    case KEEPS_CHILD: if (!fork()) { sleep(30); _exit(0); } break;
    case FORKS_ON: if (fork() < 0) abort(); break;
    case WRITES_PAST: y[n] = 7; break;
    case WRITES_BEFORE: y[-1] = 7; break;
    case WRITES_FAR: y[n + 1000] = 7; break;
    case READS_PAST: seen = x[n]; (void)seen; break;
    case READS_BEFORE: seen = x[-1]; (void)seen; break;
    case WRITES_PAST_INPUT: ((float *)x)[n] = 7; break;
    case CHANGES_DIRECTORY: if (chdir("/")) abort(); break;
    case ROUNDS_UP: fesetround(FE_UPWARD); break;
    case ROUNDS_TO_ZERO: fesetround(FE_TOWARDZERO); break;
#ifdef __x86_64__
    case FLUSHES: __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040); break;
#endif
    case TRAPS: feenableexcept(FE_DIVBYZERO); break;
    case BLOCKS_SIGNALS: sigemptyset(&some); sigaddset(&some, SIGUSR1); pthread_sigmask(SIG_BLOCK, &some, NULL); break;
    case IGNORES_SIGNALS: signal(SIGTERM, SIG_IGN); break;
    case HANDLES_SIGNALS: signal(SIGUSR2, ignore); break;
    case SETS_ALARM: setitimer(ITIMER_REAL, &soon, NULL); break;
    case MASKS_FILES: umask(0777); break;
    case SETS_LOCALE: if (!setlocale(LC_ALL, "C.UTF-8") || !setlocale(LC_NUMERIC, "POSIX")) abort(); break;
    case ONE_PROCESSOR: CPU_ZERO(&here); CPU_SET(sched_getcpu(), &here); sched_setaffinity(0, sizeof here, &here); break;
    case LIMITS_FILES: setrlimit(RLIMIT_NOFILE, &few); break;
    case COUNTS_CALLS: y[0] = (float)++calls; break;
    case WRITES_LATE: thread(scribble, y); break;
    case FREES_TWICE: { void *p = sink = malloc(5000); free(sink); free(p); break; }
    case SMASHES_HEAP: { char *p = sink = malloc(40); memset(sink, 'x', 48); free(p); break; }
    case CLOSES_ALL: for (int fd = 3; fd < 64; fd++) close(fd); break;
    case SPEAKS_PROTOCOL: for (int fd = 3; fd < 16; fd++) if (write(fd, "OPG9 no frame at all", 20) < 0) errno = 0; break;
    case PRINTS: for (int i = 0; i < 20000; i++) printf("OPG1 \033[31m and forty more characters of no use\n"); break;
    case POISONS_NEXT: poisoned = 1; break;
  }
}

void kernel(const float *x, float *y, size_t n) {
  int kind = (int)x[0];
  if (poisoned) abort();  // an earlier case broke something
  before_computing(kind, x);
  size_t end = kind == SKIPS_LAST ? n - 1 : kind == SKIPS_ALL ? 0 : n;
  if (kind == SKIPS_ODD) { for (size_t i = 0; i < n; i += 2) y[i] = 2 * x[i]; } else { twice(x, y, end); }
  misbehave(kind, x, y, n);
}

// Runs once, then breaks in a second call of the same process: only order tells.
void second_call_breaks(const float *x, float *y, size_t n) {
  twice(x, y, n);
  if (x[0] == 9) poisoned = 1;
  if (x[0] == 5 && poisoned) abort();
}
