package torchsnapshot

import (
	"strings"

	"github.com/cistern-ml/cistern/memcache"
)

// settings writes the options, as a string and as the values that PyTorch reads from it.
func settings(p *pickler, c memcache.Config) {
	p.dict(func() {
		p.key("PYTORCH_CUDA_ALLOC_CONF").text(options(c))
		maxSplit := int64(-1)
		if c.MaxSplitSizeMB != 0 {
			maxSplit = c.MaxSplitSizeMB << 20
		}
		p.key("max_split_size").int(maxSplit)
		p.key("garbage_collection_threshold").float(c.GarbageCollectionThreshold)
		p.key("expandable_segments").bool(c.ExpandableSegments)
		p.key("release_lock_on_cudamalloc").bool(c.ReleaseLockOnCudaMalloc)
		p.key("graph_capture_record_stream_reuse").bool(false)
		// Pinned memory is not the cache's; these are PyTorch's defaults.
		p.key("pinned_num_register_threads").int(1)
		p.key("pinned_use_cuda_host_register").bool(false)
		p.key("roundup_power2_divisions").dict(func() {
			for i, n := range c.RoundupPower2Divisions {
				p.key(decimal(1 << i)).int(int64(n))
			}
		})
	})
}

// options returns the cache's options with PyTorch's default for missing ones: there every cache is
// exact.
func options(c memcache.Config) string {
	exact := c.Exact
	c.Exact = false
	text := c.Options()
	if !exact {
		text = strings.TrimPrefix(text+",exact:False", ",")
	}
	return text
}
