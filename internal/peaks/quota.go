package peaks

// The arithmetic of quotas, apart from locks and from how shards keep their counts: a ledger whose gauges lie where every
// operation finds them at once (memcache's) has these rules, too.

// Take raises a quota towards need by what the other has beyond its use, and returns what is still missing. The shards of both
// are locked.
func Take(quota *int64, need int64, other *int64, used int64) (missing int64) {
	if missing = need - *quota; missing <= 0 {
		return 0
	}
	n := min(missing, *other-used)
	*quota += n
	*other -= n
	return missing - n
}

// Cover makes one shard's quota enough for n more than it uses: with what the others don't use, in their order, and, if that
// is less, by raising the peak, to exactly the sum of all uses with n. It reports whether the peak rose. of gives a shard's use
// and its quota. All shards are locked.
func Cover[S comparable](peak *int64, mine S, all []S, n int64, of func(S) (used int64, quota *int64)) (rose bool) {
	// As long as another shard has unused quota the true sum is below the peak, and the peak must not rise.
	used, quota := of(mine)
	need := used + n
	missing := need - *quota
	for _, o := range all {
		if missing <= 0 {
			return false
		}
		if o != mine {
			used, other := of(o)
			missing = Take(quota, need, other, used)
		}
	}
	if missing > 0 {
		*quota += missing
		*peak += missing
	}
	return missing > 0
}
