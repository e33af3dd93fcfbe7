package memcache

import (
	"fmt"
	"math/bits"
	"os"
	"slices"
	"strconv"
	"strings"
)

// PyTorch's option string, so that a ported program keeps its settings, and a recording can be
// replayed with its own options. What PyTorch refuses is refused, with an error that states the
// valid values. Options for pinned memory are checked and otherwise ignored.

// ParseConfig parses PyTorch's option string (PYTORCH_CUDA_ALLOC_CONF), "key:value,key:[a:b,c:d]",
// also in its spelling for HIP. Options for pinned host memory and classes of streams, and
// backend:native, are accepted without effect. An unknown option, or a value that PyTorch refuses,
// is an error that wraps [ErrInvalid].
//
// Fields of Config without an option in PyTorch have names of their own: expandable_granule_mb,
// expandable_remap, memory_limit and max_cached_bytes (in bytes), reuse_across_streams (never,
// when_full or before_growth), no_caching and exact. PyTorch refuses these.
func ParseConfig(options string) (Config, error) { return Config{}.with("ParseConfig", options) }

// With returns c changed by an option string, for [Cache.SetConfig]. As in PyTorch
// (torch.cuda.memory._set_allocator_settings), MaxSplitSizeMB, MaxNonSplitRoundingMB,
// RoundupPower2Divisions and GarbageCollectionThreshold return to their defaults unless the string
// sets them. The other fields keep their values unless the string sets them.
func (c Config) With(options string) (Config, error) {
	c.MaxSplitSizeMB, c.MaxNonSplitRoundingMB, c.RoundupPower2Divisions, c.GarbageCollectionThreshold = 0, 0, Divisions{}, 0
	return c.with("With", options)
}

// with returns c with the options set. After an error it returns the zero Config.
func (c Config) with(call, options string) (Config, error) {
	fail := func(format string, args ...any) (Config, error) {
		return Config{}, fmt.Errorf("memcache: %s(%q): %w: %s", call, options, ErrInvalid, fmt.Sprintf(format, args...))
	}
	// key:value, separated by commas; a value in brackets may contain commas of its own. PyTorch
	// ignores white space.
	rest := strings.Join(strings.Fields(options), "")
	for rest != "" {
		key, after, ok := strings.Cut(rest, ":")
		if !ok || key == "" {
			return fail("%q is not key:value", rest)
		}
		var value string
		if strings.HasPrefix(after, "[") {
			end := strings.IndexByte(after, ']')
			if end < 0 {
				return fail("%s: the list has no ]", key)
			}
			value, rest = after[:end+1], after[end+1:]
			if rest != "" && rest[0] != ',' {
				return fail("%s: %q after the list", key, rest)
			}
			rest = strings.TrimPrefix(rest, ",")
		} else {
			value, rest, _ = strings.Cut(after, ",")
		}
		set, known := setters[key]
		if !known {
			return fail("unknown option %q", key)
		}
		if err := set(&c, value); err != nil {
			return fail("%s is %q: %v", key, value, err)
		}
	}
	if _, err := c.rules(); err != nil {
		return Config{}, fmt.Errorf("memcache: %s(%q): %w", call, options, err)
	}
	return c, nil
}

// environment lists the variables that ConfigFromEnv reads; the first one that is set applies.
var environment = []string{"CISTERN_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF"}

// ConfigFromEnv parses the options in CISTERN_ALLOC_CONF or, if that is not set, in the first of
// PyTorch's variables that is set: PYTORCH_CUDA_ALLOC_CONF, PYTORCH_HIP_ALLOC_CONF,
// PYTORCH_ALLOC_CONF. New does not read them; programs call ConfigFromEnv. CISTERN_NO_CACHING or,
// if that is not set, PYTORCH_NO_CUDA_MEMORY_CACHING sets NoCaching: 1 or true, 0 or false; an
// empty value has no effect. (PyTorch takes any value for 1.) Without any of these variables it
// returns the zero Config.
func ConfigFromEnv() (Config, error) {
	c, err := optionsFromEnv()
	if err != nil {
		return c, err
	}
	for _, name := range []string{"CISTERN_NO_CACHING", "PYTORCH_NO_CUDA_MEMORY_CACHING"} {
		v, ok := os.LookupEnv(name)
		if !ok {
			continue
		}
		if v == "" {
			break
		}
		if c.NoCaching, err = strconv.ParseBool(v); err != nil {
			return Config{}, fmt.Errorf("memcache: the variable %s is %q: %w: want 1 or 0", name, v, ErrInvalid)
		}
		break
	}
	return c, nil
}

// optionsFromEnv parses the first variable that is set, even if it is empty.
func optionsFromEnv() (Config, error) {
	for _, name := range environment {
		if v, ok := os.LookupEnv(name); ok {
			c, err := ParseConfig(v)
			if err != nil {
				return c, fmt.Errorf("memcache: the variable %s: %w", name, err)
			}
			return c, nil
		}
	}
	return Config{}, nil
}

// setter checks the value of an option and stores it in the configuration.
type setter func(c *Config, value string) error

var setters = map[string]setter{
	"max_split_size_mb":            mebibytes(func(c *Config) *int64 { return &c.MaxSplitSizeMB }),
	"max_non_split_rounding_mb":    mebibytes(func(c *Config) *int64 { return &c.MaxNonSplitRoundingMB }),
	"large_segment_size_mb":        mebibytes(func(c *Config) *int64 { return &c.LargeSegmentSizeMB }),
	"roundup_power2_divisions":     setDivisions,
	"garbage_collection_threshold": ratio(func(c *Config) *float64 { return &c.GarbageCollectionThreshold }, "more than 0 and less than 1", func(v float64) bool { return v > 0 && v < 1 }),
	"per_process_memory_fraction":  setFraction,
	"expandable_segments":          boolean(func(c *Config) *bool { return &c.ExpandableSegments }),
	"expandable_segments_reserve":  setReserve,
	"expandable_segments_reserve_by_class": func(_ *Config, v string) error {
		if !strings.HasPrefix(v, "[") {
			return fmt.Errorf("want a list")
		}
		return nil // streams have no classes here
	},
	"throw_on_cudamalloc_oom":           boolean(func(c *Config) *bool { return &c.ThrowOnCudaMallocOOM }),
	"throw_on_hipmalloc_oom":            boolean(func(c *Config) *bool { return &c.ThrowOnCudaMallocOOM }),
	"release_lock_on_cudamalloc":        boolean(func(c *Config) *bool { return &c.ReleaseLockOnCudaMalloc }),
	"release_lock_on_hipmalloc":         boolean(func(c *Config) *bool { return &c.ReleaseLockOnCudaMalloc }),
	"expandable_granule_mb":             ownNumber(func(c *Config) *int64 { return &c.ExpandableGranuleMB }, "MiB"),
	"expandable_remap":                  boolean(func(c *Config) *bool { return &c.ExpandableRemap }),
	"memory_limit":                      ownNumber(func(c *Config) *int64 { return &c.MemoryLimit }, "bytes"),
	"max_cached_bytes":                  ownNumber(func(c *Config) *int64 { return &c.MaxCachedBytes }, "bytes"),
	"reuse_across_streams":              setReuse,
	"no_caching":                        boolean(func(c *Config) *bool { return &c.NoCaching }),
	"exact":                             boolean(func(c *Config) *bool { return &c.Exact }),
	"graph_capture_record_stream_reuse": boolean(func(c *Config) *bool { return &c.GraphCaptureRecordStreamReuse }),
	"pinned_use_cuda_host_register":     boolean(nil),
	"pinned_use_hip_host_register":      boolean(nil),
	"pinned_free_catch_all":             boolean(nil),
	"pinned_use_background_threads":     boolean(nil),
	"pinned_num_register_threads":       ignoredCount(func(v int64) bool { return v > 0 && v <= 128 && v&(v-1) == 0 }, "a power of two up to 128"),
	"pinned_reserve_segment_size_mb":    ignoredCount(func(v int64) bool { return v > 0 }, "more than 0"),
	"backend": func(_ *Config, v string) error {
		if v != "native" {
			return fmt.Errorf("only native is supported")
		}
		return nil
	},
}

// mebibytes parses a positive number of MiB, as PyTorch does.
func mebibytes(field func(*Config) *int64) setter { return number(field, 1, "MiB") }

// ownNumber parses the number of an option that PyTorch does not have. 0 is the default, so that
// [Config.With] can reset it.
func ownNumber(field func(*Config) *int64, unit string) setter { return number(field, 0, unit) }

// number parses a whole number that is at least least.
func number(field func(*Config) *int64, least int64, unit string) setter {
	return func(c *Config, v string) error {
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil || n < least {
			return fmt.Errorf("want a number of %s", unit)
		}
		*field(c) = n
		return nil
	}
}

// ratio parses a number that satisfies valid, which want describes.
func ratio(field func(*Config) *float64, want string, valid func(float64) bool) setter {
	return func(c *Config, v string) error {
		f, err := strconv.ParseFloat(v, 64)
		if err != nil || !valid(f) {
			return fmt.Errorf("want a number, %s", want)
		}
		*field(c) = f
		return nil
	}
}

// fullReserve is the maximum address range of an expandable segment, as a fraction of the device's
// memory.
const fullReserve = 9.0 / 8

// setReserve parses a fraction, or a number of GiB followed by G.
func setReserve(c *Config, v string) error {
	number, gib := strings.CutSuffix(v, "G")
	f, err := strconv.ParseFloat(number, 64)
	if gib {
		f *= 1 << 30
	}
	if err != nil || !(f > 0) || f >= maxRequest || !gib && f > 1 {
		return fmt.Errorf("want a fraction up to 1, or a number of GiB such as 40G")
	}
	c.ExpandableSegmentsReserve = f
	return nil
}

// setFraction parses a fraction. 0 limits to 0 bytes, as in SetMemoryFraction, although the field's
// 0 is no limit: see noneIsNothing.
func setFraction(c *Config, v string) error {
	set := ratio(func(c *Config) *float64 { return &c.PerProcessMemoryFraction }, "0 to 1", func(v float64) bool { return v >= 0 && v <= 1 })
	if err := set(c, v); err != nil {
		return err
	}
	c.PerProcessMemoryFraction = noneIsNothing(c.PerProcessMemoryFraction)
	return nil
}

// boolean parses True and False, as PyTorch does. field is nil for an option without effect.
func boolean(field func(*Config) *bool) setter {
	return func(c *Config, v string) error {
		if v != "True" && v != "False" {
			return fmt.Errorf("want True or False")
		}
		if field != nil {
			*field(c) = v == "True"
		}
		return nil
	}
}

// setReuse parses the name of a StreamReuse.
func setReuse(c *Config, v string) error {
	i := slices.Index(streamReuses[:], v)
	if i < 0 {
		return fmt.Errorf("want %s", strings.Join(streamReuses[:], ", "))
	}
	c.ReuseAcrossStreams = StreamReuse(i)
	return nil
}

// ignoredCount checks the number of an option without effect.
func ignoredCount(valid func(int64) bool, want string) setter {
	return func(_ *Config, v string) error {
		if n, err := strconv.ParseInt(v, 10, 64); err != nil || !valid(n) {
			return fmt.Errorf("want %s", want)
		}
		return nil
	}
}

// setDivisions parses one number for all sizes, or a list [MiB:divisions,...,>:divisions]. In a
// list the first entry also applies to all smaller sizes, an entry only to its own bucket, and ">"
// to all sizes after the last entry's.
func setDivisions(c *Config, v string) error {
	d := &c.RoundupPower2Divisions
	if !strings.HasPrefix(v, "[") {
		n, err := powerOfTwo(v)
		if err != nil || n == 0 {
			return fmt.Errorf("want a power of two, or a list")
		}
		*d = AllDivisions(n)
		return nil
	}
	*d = Divisions{}
	last := -1
	for _, entry := range strings.Split(strings.Trim(v, "[]"), ",") {
		size, count, _ := strings.Cut(entry, ":")
		n, err := powerOfTwo(count)
		if err != nil {
			return fmt.Errorf("%q: the divisions must be a power of two or 0", entry)
		}
		if size == ">" {
			for i := last + 1; i < len(d); i++ {
				d[i] = n
			}
			continue
		}
		mib, err := powerOfTwo(size)
		if err != nil || mib == 0 {
			return fmt.Errorf("%q: the size must be a power of two in MiB, or >", entry)
		}
		i := min(bits.Len(uint(mib))-1, len(d)-1)
		if last < 0 {
			for k := range i {
				d[k] = n
			}
		}
		d[i] = n
		last = i
	}
	return nil
}

// powerOfTwo parses a power of two, or 0.
func powerOfTwo(s string) (int, error) {
	n, err := strconv.ParseUint(s, 10, 31)
	if err == nil && n&(n-1) != 0 {
		err = fmt.Errorf("not a power of two")
	}
	return int(n), err
}
