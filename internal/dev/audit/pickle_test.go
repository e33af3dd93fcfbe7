package audit

import (
	"bytes"
	"fmt"
	"math/big"
	"strconv"
	"strings"
	"time"

	"github.com/nlpodyssey/gopickle/pickle"
	"github.com/nlpodyssey/gopickle/types"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/memcache"
)

// plain is what a reader of pickles makes of a value, as maps and slices.
func plain(v any) any {
	switch v := v.(type) {
	case *types.Dict:
		m := map[string]any{}
		for _, e := range *v {
			m[fmt.Sprint(e.Key)] = plain(e.Value)
		}
		return m
	case *types.List:
		list := []any{}
		for _, x := range *v {
			list = append(list, plain(x))
		}
		return list
	case *types.Tuple:
		list := []any{}
		for _, x := range *v {
			list = append(list, plain(x))
		}
		return list
	case *big.Int:
		return v.Uint64()
	}
	return v
}

// checkPickle compares a snapshot in PyTorch's form, where its reader has 64 bits for a number.
func (w *world) checkPickle() {
	if strconv.IntSize == 32 {
		return // github.com/nlpodyssey/gopickle reads no number beyond 31 bits here
	}
	began := time.Now().UnixMicro()
	u := pickle.NewUnpickler(bytes.NewReader(w.get("snapshot?addresses=1")))
	file, err := u.Load()
	require.NoError(w.t, err)
	all := plain(file).(map[string]any)
	for _, name := range []string{"allocator_settings", "external_annotations"} { // options and names are no figures
		require.Contains(w.t, all, name)
		delete(all, name)
	}
	for _, s := range all["segments"].([]any) {
		delete(s.(map[string]any), "frames")
		for _, b := range s.(map[string]any)["blocks"].([]any) {
			if b := b.(map[string]any); b["state"] == "inactive" {
				delete(b, "requested_size") // of an earlier hand-out
			}
		}
	}
	entries := all["device_traces"].([]any)[0].([]any)
	last := int64(0)
	for _, e := range entries {
		at := number(e.(map[string]any)["time_us"])
		require.True(w.t, last <= at && at <= time.Now().UnixMicro() && at > began-3600e6, "%v", w)
		last = at
		delete(e.(map[string]any), "time_us")
		require.Equal(w.t, "N/A", e.(map[string]any)["compile_context"])
		delete(e.(map[string]any), "compile_context")
	}
	want := figures{}
	for i, s := range w.books.snapshot() {
		at := fmt.Sprintf("segments[%d].", i)
		figuresOf := figures{"device": 0, "address": s.Address, "total_size": s.TotalSize, "allocated_size": s.AllocatedSize, "active_size": s.ActiveSize,
			"requested_size": s.RequestedSize, "stream": s.Stream, "segment_type": s.Pool, "segment_pool_id[0]": 0, "segment_pool_id[1]": s.PoolID[1],
			"is_expandable": false}
		for name, v := range figuresOf {
			want[at+name] = v
		}
		for j, b := range s.Blocks {
			at := fmt.Sprintf("%sblocks[%d].", at, j)
			want[at+"address"], want[at+"size"], want[at+"state"] = b.Address, b.Size, b.State
			if b.State != memcache.BlockInactive {
				want[at+"requested_size"] = b.RequestedSize
				want.frames(at+"frames", b.Label)
			}
		}
	}
	w.pickledHistory(want)
	requireTrue(w.t, "torchsnapshot", of(all), want, w)
	w.books.event(memcache.HistoryEntry{Action: memcache.ActionSnapshot, Size: w.books.all["ActiveBytes"][0].current})
}

// pickledHistory adds the history's entries: a block has the label that it was given last.
func (w *world) pickledHistory(want figures) {
	later := map[uint64]memcache.Label{}
	coloured := false
	for _, e := range w.books.events {
		if e.Action == memcache.ActionRelabel {
			later[e.Serial] = e.Label
		}
	}
	labelOf := func(e memcache.HistoryEntry) memcache.Label {
		if l, ok := later[e.Serial]; ok {
			return l
		}
		return e.Label
	}
	for _, e := range w.books.events {
		coloured = coloured || e.Action != memcache.ActionRelabel && labelOf(e).Category != memcache.CategoryOther
	}
	i := 0
	for _, e := range w.books.events {
		if e.Action == memcache.ActionRelabel {
			continue
		}
		at, l := fmt.Sprintf("device_traces[0][%d].", i), labelOf(e)
		i++
		want[at+"action"], want[at+"size"], want[at+"stream"] = e.Action, e.Size, e.Stream
		if e.Action == memcache.ActionOOM {
			want[at+"device_free"] = e.Free
		} else {
			want[at+"addr"] = e.Address
		}
		if strings.HasPrefix(string(e.Action), "free_") {
			want[at+"block_size"] = e.Block
		}
		if e.Pool != (memcache.PoolID{}) {
			want[at+"pool_id[0]"], want[at+"pool_id[1]"] = 0, e.Pool[1]
		}
		want[at+"user_metadata"] = ""
		if l != (memcache.Label{}) {
			text := l.String()
			if l.Tags != "" {
				text += "; " + l.Tags
			}
			want[at+"user_metadata"] = text
			want.frames(at+"frames", l)
		}
		if coloured {
			want[at+"category"] = map[bool]string{true: "unknown", false: l.Category.String()}[l.Category == memcache.CategoryOther]
		}
	}
}

// frames adds the frames that show a label: its step, its module with the enclosing ones, and its
// category.
func (f figures) frames(at string, l memcache.Label) {
	n := 0
	add := func(name, file string, line int64) {
		place := fmt.Sprintf("%s[%d].", at, n)
		f[place+"name"], f[place+"filename"], f[place+"line"] = name, file, line
		n++
	}
	if l.Step != 0 {
		add(fmt.Sprint("step ", l.Step), "step", l.Step)
	}
	if l.Module != "" {
		parts := strings.Split(l.Module, ".")
		for k := len(parts); k > 0; k-- {
			add(strings.Join(parts[:k], "."), "module", 0)
		}
	}
	if l.Category != memcache.CategoryOther || l.Module != "" {
		add(l.Category.String(), "category", 0)
	}
}
