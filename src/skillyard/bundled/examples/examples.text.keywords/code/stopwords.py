"""English words that say little about a text."""

STOPWORDS = frozenset(
    """
    about above after again against all also although always among and another any are around because been before
    being below between both but can cannot could did does doing done down during each either else ever every few for
    from further had has have having her here hers him his how however into its itself just least less let like made
    make many may might more most much must neither never nor not now off often once one only onto other others our
    out over own per perhaps quite rather said same shall she should since some still such than that the their theirs
    them then there these they this those though through thus too two under until upon very was well were what when
    where whether which while who whom whose why will with within without would yet you your yours
    """.split()  # noqa: SIM905 - a list of words is easier to keep as text
)
