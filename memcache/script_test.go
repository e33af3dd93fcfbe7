package memcache

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

var rewrite = flag.Bool("rewrite", false, "write what the scripts print into them")

// TestScripts runs testdata/scripts/*.txt: commands, and below a line of dashes their output.
//
//	config OPTIONS [exact] [remap]  a new cache; PyTorch's option string, or "default"
//	device SIZE             the device's memory, for the next config
//	alloc NAME SIZE STREAM  free NAME  record NAME STREAM
//	busy STREAM  finish STREAM  close STREAM
//	empty  fraction F  fail N (the next driver allocations)
//	dump  stats [NAME...]  calls  reset peaks|sums
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/scripts/*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			commands, want, _ := strings.Cut(string(text), "----\n")
			got := runScript(t, commands)
			if *rewrite {
				require.NoError(t, os.WriteFile(file, []byte(commands+"----\n"+got), 0o644))
				return
			}
			require.Equal(t, want, got)
		})
	}
}

// script is a running script.
type script struct {
	t       *testing.T
	total   int64
	dev     *scripted
	c       *Cache
	streams map[string]*scriptedStream
	blocks  map[string]Block
	out     strings.Builder
	places  map[device.Ptr]string // names of segments, by address
}

func runScript(t *testing.T, commands string) string {
	s := &script{t: t, total: 1 << 30}
	for line := range strings.Lines(commands) {
		line, _, _ = strings.Cut(strings.TrimSpace(line), "#")
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		fmt.Fprintf(&s.out, "> %s\n", strings.Join(words, " "))
		if err := s.run(words[0], words[1:]); err != nil {
			fmt.Fprintf(&s.out, "  %v\n", err)
		}
		if s.c != nil {
			require.NoError(t, s.c.check(), line)
		}
	}
	return s.out.String()
}

func (s *script) run(command string, args []string) error {
	switch command {
	case "device":
		s.total = s.size(args[0])
		return nil
	case "config":
		return s.config(args)
	case "alloc":
		before := s.c.Stats()
		b, err := s.c.Alloc(s.t.Context(), s.size(args[1]), s.stream(args[2]))
		if err != nil {
			return err
		}
		s.blocks[args[0]] = b
		how := "hit"
		if s.c.Stats().Misses > before.Misses {
			how = "miss"
		}
		fmt.Fprintf(&s.out, "  %s: %s, %s\n", how, s.place(b.Ptr()), short(b.Size()))
	case "free":
		return s.blocks[args[0]].Free()
	case "record":
		return s.blocks[args[0]].RecordStream(s.stream(args[1]))
	case "busy":
		s.stream(args[0]).busy = true
	case "finish":
		s.stream(args[0]).finish()
	case "close":
		s.stream(args[0]).finish()
		s.stream(args[0]).closed.Store(true)
	case "empty":
		return s.c.EmptyCache(s.t.Context())
	case "fraction":
		f, err := strconv.ParseFloat(args[0], 64)
		return errors.Join(err, s.c.SetMemoryFraction(f))
	case "fail":
		n, err := strconv.Atoi(args[0])
		s.dev.failures = n
		return err
	case "reset":
		if args[0] == "peaks" {
			s.c.ResetPeakStats()
		} else {
			s.c.ResetAccumulatedStats()
		}
	case "dump":
		s.dump()
	case "stats":
		s.stats(args)
	case "calls":
		for _, call := range s.dev.calls {
			var what string
			var p device.Ptr
			var bytes int64
			if _, err := fmt.Sscan(call, &what, &p, &bytes); err != nil {
				return err
			}
			fmt.Fprintf(&s.out, "  %s %s %s\n", what, s.place(p), short(bytes))
		}
		s.dev.calls = nil
	default:
		s.t.Fatalf("unknown command %q", command)
	}
	return nil
}

func (s *script) config(args []string) error {
	options := args[0]
	if options == "default" {
		options = ""
	}
	config, err := ParseConfig(options)
	if err != nil {
		return err
	}
	for _, a := range args[1:] {
		switch a {
		case "exact":
			config.Exact = true
		case "remap":
			config.ExpandableGranuleMB, config.ExpandableRemap = 2, true
		default:
			s.t.Fatalf("unknown option %q", a)
		}
	}
	s.dev = newScripted(s.total)
	s.streams, s.blocks, s.places = map[string]*scriptedStream{}, map[string]Block{}, map[device.Ptr]string{}
	s.c, err = New(s.dev, config)
	return err
}

func (s *script) stream(name string) *scriptedStream {
	if s.streams[name] == nil {
		id, err := strconv.ParseUint(name, 10, 64)
		require.NoError(s.t, err)
		s.streams[name] = s.dev.stream(id)
	}
	return s.streams[name]
}

var units = map[string]int64{"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}

func (s *script) size(text string) int64 {
	end := strings.IndexFunc(text, func(r rune) bool { return r >= 'A' })
	n, err := strconv.ParseFloat(text[:end], 64)
	require.NoError(s.t, err)
	return int64(n * float64(units[text[end:]]))
}

// short formats bytes in the largest unit without a fraction.
func short(bytes int64) string {
	for _, unit := range []string{"GiB", "MiB", "KiB"} {
		if bytes != 0 && bytes%units[unit] == 0 {
			return fmt.Sprintf("%d %s", bytes/units[unit], unit)
		}
	}
	return fmt.Sprintf("%d B", bytes)
}

// place returns an address relative to the start of the device's addresses.
func (s *script) place(p device.Ptr) string { return "+" + short(int64(p)-1<<40) }

func (s *script) dump() {
	for _, g := range s.c.Snapshot().Segments {
		kind := g.Pool
		if g.Expandable {
			kind += ", expandable"
		}
		fmt.Fprintf(&s.out, "  segment %s of %s, stream %d, %s\n", s.place(g.Address), short(g.TotalSize), g.Stream, kind)
		for _, b := range g.Blocks {
			fmt.Fprintf(&s.out, "    %s %s %s", s.place(b.Address), short(b.Size), b.State)
			if b.RequestedSize > 0 {
				fmt.Fprintf(&s.out, " (%s asked for)", short(b.RequestedSize))
			}
			fmt.Fprintln(&s.out)
		}
	}
}

func (s *script) stats(names []string) {
	m := s.c.Stats().Map()
	if len(names) == 0 {
		names = []string{"allocated_bytes.all.current", "active_bytes.all.current", "reserved_bytes.all.current", "inactive_split_bytes.all.current"}
	}
	for _, name := range names {
		v, ok := m[name]
		require.True(s.t, ok, name)
		fmt.Fprintf(&s.out, "  %s %d\n", name, v)
	}
}
