package experiment

import (
	"bytes"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/trueload/trueload/internal/analysis"
)

// host reads what the machine says of this process, so that a run can tell when
// the generator itself was the bottleneck.
type host struct {
	wall       time.Time
	cpu        time.Duration // user and system time of this process
	steal, all float64       // clock ticks of the whole machine
	throttled  time.Duration // by the cgroup's CPU limit
	gcs        int64
}

// prepareProcess gives the process what sending on time needs, and returns how
// many files it may have open (0: unknown). On a single core Go gets two
// schedulers, between which the kernel shares the core out finely: alone, one
// would leave the pacer waiting behind whatever reads or marks.
func prepareProcess() (files int) {
	if runtime.GOMAXPROCS(0) < 2 {
		runtime.GOMAXPROCS(2)
	}
	CollectSeldom()
	return raiseFileLimit()
}

// CollectSeldom makes garbage collection rare. It costs such a process little and
// its latencies much: on one core its marking takes ten milliseconds in a
// stretch. It now comes when the heap has grown ninefold, up to half of the
// memory there is. Who sets GOGC or GOMEMLIMIT is obeyed.
func CollectSeldom() {
	if os.Getenv("GOGC") != "" || os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	if total := memoryTotal(); total > 0 {
		debug.SetGCPercent(800)
		debug.SetMemoryLimit(total / 2)
	}
}

// memoryTotal is the memory this process may use, in bytes: the machine's, or
// its cgroup's limit where that is less. 0: unknown.
func memoryTotal() int64 {
	total := parseMemTotal(readSmall("/proc/meminfo"))
	if limit, err := strconv.ParseInt(strings.TrimSpace(string(readSmall("/sys/fs/cgroup/memory.max"))), 10, 64); err == nil && limit > 0 {
		total = min(total, limit)
	}
	return total
}

// parseMemTotal reads the MemTotal line of /proc/meminfo.
func parseMemTotal(b []byte) int64 {
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) >= 2 && f[0] == "MemTotal:" {
			kb, err := strconv.ParseInt(f[1], 10, 64)
			if err == nil {
				return kb << 10
			}
		}
	}
	return 0
}

func readHost() host {
	h := host{wall: time.Now(), cpu: processCPU()}
	h.steal, h.all = parseStat(readSmall("/proc/stat"))
	h.throttled = parseThrottled(readSmall("/sys/fs/cgroup/cpu.stat"))
	var gc debug.GCStats
	debug.ReadGCStats(&gc)
	h.gcs = gc.NumGC
	return h
}

// since fills in the generator's figures for the time between h and now.
func (h host) since(g *analysis.Generator) {
	n := readHost()
	elapsed := n.wall.Sub(h.wall).Seconds()
	if elapsed <= 0 {
		return
	}
	share := (n.cpu - h.cpu).Seconds() / elapsed / float64(runtime.NumCPU())
	g.CPUShare = &share
	if n.all > h.all {
		steal := (n.steal - h.steal) / (n.all - h.all)
		g.Steal = &steal
	}
	if n.throttled >= 0 && h.throttled >= 0 {
		t := (n.throttled - h.throttled).Seconds()
		g.Throttled = &t
	}
	pause := 0.0
	var gc debug.GCStats
	debug.ReadGCStats(&gc)
	for i, p := range gc.Pause { // most recent first
		if int64(i) >= gc.NumGC-h.gcs {
			break
		}
		pause = max(pause, p.Seconds())
	}
	g.GCPauseMax = &pause
	if entries, err := os.ReadDir("/proc/self/fd"); err == nil {
		n := int64(len(entries))
		g.OpenFiles = &n
	}
}

// readSmall returns a small file's content, or nothing where there is none.
func readSmall(path string) []byte {
	b, err := os.ReadFile(path)
	if err != nil || len(b) > 1<<20 {
		return nil
	}
	return b
}

// parseStat reads the first line of /proc/stat: ticks stolen by the hypervisor,
// and all of them (proc_stat(5); guest time is part of user time).
func parseStat(b []byte) (steal, all float64) {
	line, _, _ := bytes.Cut(b, []byte("\n"))
	f := strings.Fields(string(line))
	if len(f) < 9 || f[0] != "cpu" {
		return 0, 0
	}
	for i, s := range f[1:9] {
		v, _ := strconv.ParseFloat(s, 64)
		all += v
		if i == 7 {
			steal = v
		}
	}
	return steal, all
}

// parseThrottled reads how long a cgroup v2 CPU limit held this process back;
// -1 where it does not say.
func parseThrottled(b []byte) time.Duration {
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "throttled_usec "); ok {
			us, err := strconv.ParseInt(strings.TrimSpace(v), 10, 64)
			if err == nil {
				return time.Duration(us) * time.Microsecond
			}
		}
	}
	return -1
}
