package recording

import (
	"fmt"
	"math/bits"
	"regexp"
	"strconv"

	"github.com/nlpodyssey/gopickle/types"
)

// addSettings adds the allocator's options to the recordings.
func addSettings(top *types.Dict, list []*Recording) error {
	v, ok := field(top, "allocator_settings")
	if !ok {
		return nil
	}
	const what = "allocator_settings"
	d, err := dictOf(v, what)
	if err != nil {
		return err
	}
	var conf string
	for _, name := range []string{"PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"} {
		if _, ok := field(d, name); ok {
			if conf, err = textField(d, name, what); err != nil {
				return err
			}
		}
	}
	s := &Settings{MaxSplitSize: -1}
	if _, ok := field(d, "max_split_size"); ok {
		if s.MaxSplitSize, err = intField(d, "max_split_size", what); err != nil {
			return err
		}
	}
	if v, ok := field(d, "garbage_collection_threshold"); ok {
		f, ok := v.(float64)
		if !ok || !(f >= 0 && f < 1) {
			return fmt.Errorf("%s: garbage_collection_threshold is %v; want a float from 0 to 1", what, kindOf(v))
		}
		s.GarbageCollectionThreshold = f
	}
	if v, ok := field(d, "expandable_segments"); ok {
		if s.ExpandableSegments, ok = v.(bool); !ok {
			return fmt.Errorf("%s: expandable_segments is %s; want a bool", what, kindOf(v))
		}
	}
	if err := divisions(d, s); err != nil {
		return err
	}
	unknown := unknownSettings(d)
	unknown = unknown[:min(len(unknown), maxNotes)]
	for _, rec := range list {
		rec.Conf, rec.Settings = conf, s
		for _, name := range unknown {
			rec.note("the allocator setting %s is unknown and ignored", name)
		}
	}
	return nil
}

// knownSettings are the keys of allocator_settings that are read, are also in the option string, or
// concern pinned memory.
var knownSettings = regexp.MustCompile(`^(PYTORCH_(CUDA_|HIP_)?ALLOC_CONF|max_split_size|garbage_collection_threshold|expandable_segments|` +
	`roundup_power2_divisions|release_lock_on_(cuda|hip)malloc|graph_capture_record_stream_reuse|per_process_memory_fraction|` +
	`throw_on_(cuda|hip)malloc_oom|large_segment_size(_mb)?|max_non_split_rounding(_size|_mb)?|expandable_segments_reserve\w*|pinned_\w+)$`)

// unknownSettings returns the other keys whose values are not false, 0 or empty.
func unknownSettings(d *types.Dict) (names []string) {
	for _, e := range *d {
		name, ok := e.Key.(string)
		if !ok || knownSettings.MatchString(name) {
			continue
		}
		switch v := e.Value.(type) {
		case nil:
		case bool, int, float64, string:
			if v != false && v != 0 && v != 0.0 && v != "" {
				names = append(names, clip(fmt.Sprintf("%s = %v", name, v)))
			}
		default:
			names = append(names, clip(name))
		}
	}
	return names
}

// divisions parses {"1": n, "2": n, ... "32768": n}, with sizes in MiB.
func divisions(d *types.Dict, s *Settings) error {
	v, ok := field(d, "roundup_power2_divisions")
	if !ok {
		return nil
	}
	const what = "roundup_power2_divisions"
	list, err := dictOf(v, what)
	if err != nil {
		return err
	}
	for _, e := range *list {
		key, _ := e.Key.(string)
		mib, err := strconv.ParseUint(key, 10, 16)
		n, ok := e.Value.(int)
		if err != nil || bits.OnesCount64(mib) != 1 || !ok || n < 0 || n > 1<<30 {
			return fmt.Errorf("%s has the entry %q: %s; want powers of two up to 32768 and numbers", what, clip(key), kindOf(e.Value))
		}
		s.RoundupPower2Divisions[bits.Len64(mib)-1] = int64(n)
	}
	return nil
}
