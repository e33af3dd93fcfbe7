package forecast

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/internal/sizes"
	"github.com/cistern-ml/cistern/memcache"
)

// remedies are what lets a category of memory leave the device, or shrink.
var remedies = map[memcache.Category]string{
	memcache.CategoryParameter:      "offload.Parameters brings them block by block",
	memcache.CategoryGradient:       "optim.InBackward frees them as they come; parallel shards them",
	memcache.CategoryOptimizerState: "offload.State keeps it on the host; parallel shards it; optim.NewSGD has less",
	memcache.CategoryActivation:     "remat.Layer computes them again; a compute dtype of bfloat16 halves them; offload.Layer moves them; LargestBatch finds the batch that fits",
	memcache.CategoryInput:          "a smaller batch",
	memcache.CategoryWorkspace:      "a smaller batch",
}

// advise names what takes the memory of a training that does not fit, the most first.
func (f *Forecast) advise() []string {
	lines := []string{fmt.Sprintf("%s more would do", sizes.Format(max(f.ReservedPeak-f.Capacity, 0)))}
	if p := f.Step.Peak; p != nil {
		shares := slices.Clone(p.Categories)
		slices.SortStableFunc(shares, func(a, b memcache.Share) int { return cmp.Compare(b.Bytes, a.Bytes) })
		for c, remedy := range remedies {
			for i := range shares {
				if shares[i].Name == c.String() {
					shares[i].Name += ": " + remedy
				}
			}
		}
		for _, s := range shares {
			if s.Bytes*20 >= f.Step.AllocatedPeak { // less would not be noticed
				lines = append(lines, fmt.Sprintf("%s of %s", sizes.Format(s.Bytes), s.Name))
			}
		}
		if free := p.Free; free*10 >= f.ReservedPeak {
			lines = append(lines, fmt.Sprintf("%s of free pieces: memcache.Config.ExpandableSegments", sizes.Format(free)))
		}
	}
	return lines
}
