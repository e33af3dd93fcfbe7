package recording

import (
	"encoding/binary"
	"math"
)

// pickler writes pickles as Python's protocol 2 does.
type pickler struct{ b []byte }

// dict keeps the order of its keys.
type dict []any // key, value, key, value

type tuple []any

func pickled(v any) []byte {
	p := &pickler{b: []byte{0x80, 2}}
	p.put(v)
	return append(p.b, '.')
}

func (p *pickler) put(v any) {
	switch v := v.(type) {
	case nil:
		p.b = append(p.b, 'N')
	case bool:
		p.b = append(p.b, map[bool]byte{true: 0x88, false: 0x89}[v])
	case int:
		p.put(int64(v))
	case int64:
		p.b = append(p.b, 0x8a, 8)
		p.b = binary.LittleEndian.AppendUint64(p.b, uint64(v))
	case uint64: // beyond int64
		p.b = append(p.b, 0x8a, 9)
		p.b = binary.LittleEndian.AppendUint64(p.b, v)
		p.b = append(p.b, 0)
	case float64:
		p.b = append(p.b, 'G')
		p.b = binary.BigEndian.AppendUint64(p.b, math.Float64bits(v))
	case string:
		p.b = append(p.b, 'X')
		p.b = binary.LittleEndian.AppendUint32(p.b, uint32(len(v)))
		p.b = append(p.b, v...)
	case tuple:
		p.b = append(p.b, '(')
		for _, x := range v {
			p.put(x)
		}
		p.b = append(p.b, 't')
	case []any:
		p.b = append(p.b, ']', '(')
		for _, x := range v {
			p.put(x)
		}
		p.b = append(p.b, 'e')
	case dict:
		p.b = append(p.b, '}', '(')
		for _, x := range v {
			p.put(x)
		}
		p.b = append(p.b, 'u')
	default:
		panic("no such value")
	}
}

// snapshot is a small one.
func snapshot(entries ...any) dict {
	return dict{
		"segments", []any{dict{
			"device", 0, "address", 4 << 20, "total_size", 2 << 20, "stream", uint64(1<<64 - 1), "segment_pool_id", tuple{0, 0},
			"blocks", []any{
				dict{"size", 512, "requested_size", 100, "state", "active_allocated"},
				dict{"size", 2<<20 - 512, "requested_size", 0, "state", "inactive"},
			},
		}},
		"device_traces", []any{entries},
		"allocator_settings", dict{
			"PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64", "max_split_size", 64 << 20, "garbage_collection_threshold", 0.5,
			"expandable_segments", true, "roundup_power2_divisions", dict{"1", 0, "2", 4, "32768", 8},
		},
	}
}

func entry(action string, addr, size int64) dict {
	return dict{"action", action, "addr", addr, "size", size, "stream", uint64(1<<64 - 1), "time_us", 7, "frames", []any{dict{"line", 1}}}
}
