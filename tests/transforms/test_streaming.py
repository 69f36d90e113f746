def test_a(run, kit):
    from streamveil.mechanisms import Registry
    EXACT = Registry.of(dict.fromkeys([f"u{i}" for i in range(9)], (1, 4096.0)))
    t = kit.histograms(EXACT)
    line = kit.timeline(t).events(("u1","a",0)).advance(3).events(("u2","a",2),("u2","b",0), ("u3","a",3)).advance(5)
    ran = run(t, line, "bundle_based", ["--streaming"])
    print([(r.slot, r.counts.tolist()) for r in ran.releases], ran.dead_letters)
    assert 0
