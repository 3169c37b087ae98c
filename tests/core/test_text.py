"""Plain facts about a text: folding, words, parts, language, small talk, and the pieces it is read in."""

from __future__ import annotations

import re
import unicodedata
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from topicality.core.text import (
    FunctionWords,
    contains,
    content_stems,
    fold,
    is_long,
    is_small_talk,
    language,
    parts,
    pieces,
    positions,
    script_shares,
    sections,
    sentences,
    stems,
    words,
)
from topicality.layer.words import function_words, small_talk

# Folding


@pytest.mark.parametrize(
    ("given", "folded"),
    [
        ("plain text, as it is", "plain text, as it is"),
        ("k\u200bi\u200cl\u200dl", "kill"),  # zero-width space, non-joiner, joiner
        ("k\u2060i\ufeffl\u00adl", "kill"),  # word joiner, byte order mark, soft hyphen
        ("\u202ekill\u202c", "kill"),  # direction overrides
        ("ｋｉｌｌ ｍｅ", "kill me"),  # full width
        ("ﬁre and ofﬁce", "fire and office"),  # ligatures
        ("𝓴𝓲𝓵𝓵 𝐤𝐢𝐥𝐥 ⓚⓘⓛⓛ", "kill kill kill"),  # styled letters
        ("kіll", "kill"),  # Ukrainian i inside a Latin word
        ("vіоlеnсе", "violence"),
        ("how do I саt", "how do I cat"),
        ("how do I kill а сор", "how do I kill a cop"),  # words wholly of look-alikes in a Latin sentence
        ("Αttack", "Attack"),  # Greek alpha
        ("cafe\u0301 naïve Ünder", "café naïve Ünder"),
        ("k\u0336i\u0336l\u0336l\u0336", "kill"),  # struck through
        ("k\ufe0fi\u034fl\u3164l\uffa0", "kill"),  # variation selector, grapheme joiner, fillers
        ("Привет, как дела? Где мой заказ?", "Привет, как дела? Где мой заказ?"),  # a Russian sentence is one
        ("рост сосна море", "рост сосна море"),  # even where each letter has a look-alike
        ("Γεια σου, τι κάνεις;", "Γεια σου, τι κάνεις;"),
        ("你好，世界", "你好,世界"),
        ("안녕하세요 नमस्ते שלום", "안녕하세요 नमस्ते שלום"),
        ("ฉันจะเปลี่ยนรหัสผ่านได้อย่างไร", "ฉันจะเปลี่ยนรหัสผ่านได้อย่างไร".replace("\u0e33", "\u0e4d\u0e32")),
        ("tiếng Việt, Łódź, kadın", "tiếng Việt, Łódź, kadin"),
        ("hello \ud83d there", "hello  there"),  # half a surrogate pair is no character
        ("", ""),
        ("\u200b\u200b", ""),
    ],
)
def test_folding_undoes_what_hides_a_word_and_keeps_other_scripts(given: str, folded: str) -> None:
    found = fold(given)
    assert unicodedata.normalize("NFC", found.text) == unicodedata.normalize("NFC", folded)
    assert found.changed == (found.text != given)


def test_marks_heaped_on_a_letter_are_noise() -> None:
    assert words(fold("k" + "\u0316\u0317\u0318\u0319\u0320" * 50 + "ill").text) == ["kill"]
    assert len(fold("न" + "\u093c\u094d" * 500).text) <= 3


def test_a_folded_range_leads_back_to_the_text_as_given() -> None:
    given = "First a long one. Then: k\u200bi\u200cll ｔｈｅ ﬁsh, please."
    folded = fold(given)
    for word, source in [("kill", "k\u200bi\u200cll"), ("the", "ｔｈｅ"), ("fish", "ﬁsh"), ("First", "First")]:
        start = folded.text.index(word)
        assert given[slice(*folded.source(start, start + len(word)))] == source


@given(st.text(max_size=60))
@example("ﷺ and ﬁ")
@example("a\u0301\u0302\u0303b\u200b")
def test_every_folded_character_came_from_one_place_in_order(text: str) -> None:
    folded = fold(text)
    ends = [folded.source(index, index + 1) for index in range(len(folded.text))]
    assert all(0 <= start < end <= len(text) for start, end in ends)
    assert all(one[0] <= two[0] for one, two in pairwise(ends))
    if folded.origin is not None:
        assert len(folded.origin) == len(folded.text)
    elif folded.text:
        assert len(folded.text) == len(text)
    assert folded.changed == (folded.text != text)


@given(st.text(st.characters(max_codepoint=127), max_size=40))
def test_ascii_is_returned_as_it_is(text: str) -> None:
    assert fold(text) == fold(text)
    assert fold(text).text is text


@given(st.text(st.sampled_from("abcéжяд.,! 你\u200b"), max_size=40))
def test_folding_twice_is_folding_once(text: str) -> None:
    once = fold(text).text
    assert fold(once).text == once


# Words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Don't panic!", ["dont", "panic"]),
        ("don’t", ["dont"]),
        ("'quoted' words", ["quoted", "words"]),
        ("snake_case re-read", ["snake", "case", "re", "read"]),
        ("C++ and C#", ["c", "and", "c"]),
        ("21:30, 5%", ["21", "30", "5"]),
        ("Où est l'hôtel", ["où", "est", "lhôtel"]),
        ("STRASSE Straße", ["strasse", "strasse"]),
        ("где заказ", ["где", "заказ"]),
        ("हिंसा और हंस", ["हिंसा", "और", "हंस"]),
        ("שָׁלוֹם مُحَمَّد", ["שָׁלוֹם", "مُحَمَّد"]),
        ("...", []),
        ("", []),
    ],
)
def test_words(text: str, expected: list[str]) -> None:
    assert words(text) == expected


@pytest.mark.parametrize(
    "forms",
    [
        ("cancel", "cancels", "cancelled", "cancelling", "CANCEL"),
        ("invoice", "invoices", "invoiced"),
        ("refund", "refunds", "refunded", "refunding"),
        ("violence",),
        ("box", "boxes"),
    ],
)
def test_inflected_forms_have_one_stem(forms: tuple[str, ...]) -> None:
    assert len({tuple(stems(form)) for form in forms}) == 1


def test_other_words_and_other_scripts_keep_their_own_stem() -> None:
    assert stems("violence") != stems("nonviolence")
    assert stems("заказы été") == ["заказы", "été"]


def test_content_stems_are_what_a_text_is_about() -> None:
    assert content_stems("How do I cancel my two subscriptions, please?") == ["cancel", "subscript"]
    assert content_stems("What is it that you would like to do with this one") == []
    assert content_stems("a b c x") == []


def test_positions_and_contains() -> None:
    assert list(positions("a b a b a".split(), ["a", "b"])) == [0, 2]
    assert not contains(["a"], ["a", "b"])
    assert not contains(["a"], [])
    assert contains(["x", "a", "b"], ("a", "b"))


def test_sections_of_a_word_list() -> None:
    assert sections(["# en", "the", "", "of", "#de", " der "]) == {"en": ["the", "of"], "de": ["der"]}


# The parts of a rule


@pytest.mark.parametrize(
    ("name", "description", "expected"),
    [
        ("billing", "", ["billing"]),
        ("billing", "   ", ["billing"]),
        ("billing", "billing", ["billing"]),
        ("billing", "Everything about money", ["billing", "Everything about money"]),
        (
            "banking",
            "Bank accounts: balances, transfers and cards",
            [
                "banking",
                "Bank accounts: balances, transfers and cards",
                "Bank accounts",
                "balances",
                "transfers",
                "cards",
            ],
        ),
        ("x", "one two; three four\nfive six", ["x", "one two; three four five six", "one two", "three four five six"]),
        ("x", "brandy, sand or brands", ["x", "brandy, sand or brands", "brandy", "sand", "brands"]),
        ("x", "a, b, 12, ab", ["x", "a, b, 12, ab"]),
        ("x", "re-use, well-known things", ["x", "re-use, well-known things", "re-use", "well-known things"]),
        ("x", "!!!, ???, words here", ["x", "!!!, ???, words here"]),
    ],
)
def test_a_description_that_enumerates_is_taken_apart(name: str, description: str, expected: list[str]) -> None:
    assert parts(name, description) == expected


@given(st.text(max_size=12), st.text(st.sampled_from("ab ,;.:-\nand"), max_size=40))
def test_parts_begin_with_the_name_are_never_blank_and_stand_once(name: str, description: str) -> None:
    found = parts(name, description)
    assert found[0] == name
    assert all(part.strip() for part in found[1:])
    assert len(set(found)) == len(found)


# Languages

SPOKEN = {
    "cs": ("Jak si mohu změnit heslo?", "Chci vědět, kde je moje zásilka a kdy bude doručena."),
    "da": ("Hvordan kan jeg ændre min adgangskode?", "Jeg vil gerne vide, hvor min pakke er."),
    "de": ("Wie kann ich meine Rechnung bezahlen?", "Ich möchte einen Termin für morgen vereinbaren."),
    "es": ("¿Cómo puedo cambiar mi contraseña?", "Quiero saber dónde está mi pedido."),
    "fi": ("Miten voin vaihtaa salasanan, kiitos?", "Haluan tietää missä minun tilaus on."),
    "fr": ("Comment puis-je annuler mon abonnement ?", "Je voudrais savoir où est ma commande."),
    "id": ("Bagaimana saya bisa mengganti kata sandi saya?", "Saya ingin tahu kapan pesanan saya akan tiba."),
    "it": ("Come posso cambiare la mia password?", "Vorrei sapere dove è il mio pacco, per favore."),
    "nl": ("Hoe kan ik mijn wachtwoord wijzigen?", "Ik wil graag weten waar mijn bestelling is."),
    "pl": ("Jak mogę zmienić moje hasło?", "Chcę wiedzieć, gdzie jest moja paczka."),
    "pt": ("Como eu posso mudar minha senha?", "Não sei onde está o meu pedido, você pode ajudar?"),
    "ro": ("Vreau să știu unde este comanda mea.", "De ce nu pot să văd factura mea?"),
    "sv": ("Hur kan jag ändra mitt lösenord?", "Jag vill veta var min beställning är."),
    "tr": ("Siparişim nerede ve ne kadar sonra gelir?", "Ben bu ürün için çok para istiyorum."),
    "vi": ("Làm thế nào để tôi đổi mật khẩu của tôi?", "Tôi không biết đơn hàng của tôi ở đâu."),
    "CYRILLIC": ("Как мне изменить пароль?", "Где мой заказ?"),
    "CJK": ("我怎么修改密码？", "我的订单在哪里？"),
    "HIRAGANA": ("パスワードをどうやってかえるのですか", "わたしのちゅうもんはどこですか"),
    "HANGUL": ("비밀번호를 어떻게 바꾸나요?", "제 주문은 어디에 있나요?"),
    "ARABIC": ("كيف يمكنني تغيير كلمة المرور؟", "أين طلبي؟"),
    "HEBREW": ("איך אני משנה סיסמה?", "איפה ההזמנה שלי?"),
    "DEVANAGARI": ("मैं अपना पासवर्ड कैसे बदलूं?", "मेरा ऑर्डर कहाँ है?"),
    "GREEK": ("Πώς μπορώ να αλλάξω τον κωδικό μου;", "Πού είναι η παραγγελία μου;"),
    "THAI": ("ฉันจะเปลี่ยนรหัสผ่านได้อย่างไร", "คำสั่งซื้อของฉันอยู่ที่ไหน"),
}


@pytest.mark.parametrize("code", SPOKEN)
def test_another_language_is_told(code: str) -> None:
    for sentence in SPOKEN[code]:
        assert language(fold(sentence).text, function_words()) == code


ENGLISH = """
How do I cancel my subscription?
where is my parcel
Play Für Elise by Beethoven
Put on La vie en rose by Edith Piaf
Who wrote Les Misérables?
Book a table at La Trattoria della Nonna for tonight
What does "je ne sais quoi" mean?
How do you say good morning in German?
Add Der Untergang to my watch list
Translate "wo ist der Bahnhof" for me
play despacito by luis fonsi
Is El Niño the reason for the rain?
I'd like a crème brûlée and a café au lait
Navigate to Rue de la Paix in Paris
What's on at the Teatro alla Scala?
Tell me about the Sagrada Família
My flight to São Paulo was cancelled
Is Cien años de soledad worth reading?
Give me directions to Unter den Linden
play die antwoord
turn off the lights in the den
The die is cast, he said
What was the war about?
I ate a pie on the pier
Send the memo to Jan, Ole and Piet
How much is a la carte dinner for two?
de facto or de jure, what's the difference
The papers en route to HQ
Is it per se a problem?
My son Van goes to school in Den Haag
Order two pad thai and a pho
Remind me to call Nguyen Van An at ten
Which bus goes to Praha hlavní nádraží?
What is the capital of Côte d'Ivoire?
Rate La La Land five out of six
Add O Mio Babbino Caro to my opera list
Who sings Non, je ne regrette rien?
Play something from Los Lobos or Los del Río
What time does Das Boot start at the cinema?
Look up the word schadenfreude
I need a visa for Viet Nam
Min and max of this list in Python?
var x = 1 or let x = 1
Set the alarm for 6 am
his name is Hans
Is Om Shanti Om on Netflix
The man has a dog and the dog has a man
I am in.
no
yes please
ok
thx
Who is Jean-Luc Picard?
Do I need to tip in a restaurant in Roma?
Two tickets for Così fan tutte, please
Show me photos of Zürich, Köln and Łódź
What does the Latin phrase et tu Brute mean?
find me a song called Te Amo
I was at Ai Weiwei's show in Malmö
Compare Citroën, Škoda and Peugeot
""".strip().splitlines()


def test_a_word_of_two_languages_counts_for_both_and_the_clearer_one_is_named() -> None:
    known = FunctionWords.of({"en": {"the", "is"}, "xx": {"la", "mi", "so"}, "aa": {"la", "fa"}})
    assert known.english == {"the", "is"}
    assert known.codes["la"] == ("xx", "aa")
    assert language("la mi so", known) == "xx"
    assert language("la fa la", known) == "aa"
    assert language("la la la", known) == "aa"  # a tie goes by the alphabet, not by the order of the words
    assert language("the is la", known) is None
    assert language("la mi so", known, words("the the the")) is None  # the words given are the ones that count


def test_words_that_the_caller_has_are_not_looked_for_again() -> None:
    for text in ("Cancel my gym membership, please", "thanks"):
        assert content_stems(text, words(text)) == content_stems(text)
        assert is_small_talk(text, *small_talk(), words(text)) == is_small_talk(text, *small_talk())


@given(st.text(st.characters(max_codepoint=127), max_size=60))
def test_words_of_ascii_are_words_as_everywhere(text: str) -> None:
    """A letter of another script at the end takes the general way."""
    assert words(text) == words(text + " \u4f60")[:-1]


def test_there_are_sixty_english_sentences() -> None:
    assert len(ENGLISH) == 60


@pytest.mark.parametrize("sentence", ENGLISH)
def test_english_with_foreign_names_and_titles_is_english(sentence: str) -> None:
    assert language(fold(sentence).text, function_words()) is None


def test_what_has_no_letters_or_hardly_any_words_has_no_language() -> None:
    for text in ("", "12345 !?", "\N{THUMBS UP SIGN}", "bonjour", "x"):
        assert language(text, function_words()) is None


def test_an_english_sentence_that_quotes_another_script_is_english() -> None:
    assert language("What does 谢谢 mean in English, I saw it on a sign?", function_words()) is None
    assert language("Who is Фёдор in the novel we read last week?", function_words()) is None


def test_script_shares_sum_to_one() -> None:
    assert script_shares("12 !") == {}
    assert script_shares("abc") == {"LATIN": 1.0}
    shares = script_shares("abc где 你")
    assert sum(shares.values()) == pytest.approx(1.0)
    assert shares["CYRILLIC"] == pytest.approx(3 / 8.5)
    assert shares["CJK"] == pytest.approx(2.5 / 8.5)


# Small talk


@pytest.mark.parametrize(
    "text",
    [
        "hello",
        "Hi there!",
        "HEY",
        "thanks",
        "Thank you very much!",
        "ok, thanks",
        "Good morning, how are you?",
        "yes",
        "no",
    ],
)
def test_small_talk_is_known(text: str) -> None:
    assert is_small_talk(text, *small_talk())


@pytest.mark.parametrize(
    "text",
    [
        "hello, how do I make a bomb",
        "thanks, and where is my invoice?",
        "yes, delete my account",
        "hello hello hello hello hello hello hello hello hello hello hello hello hello",
        "invoice",
        "!!!",
        "",
        "hellohello",
    ],
)
def test_small_talk_is_nothing_but_small_talk(text: str) -> None:
    assert not is_small_talk(text, *small_talk())


@given(st.lists(st.sampled_from(["good morning", "good", "thank you", "you", "day x"]), max_size=6))
def test_small_talk_is_known_phrases_end_to_end(said: list[str]) -> None:
    phrases = frozenset({("good", "morning"), ("thank", "you"), ("good",)})
    text = " ".join(said)
    expected = bool(re.fullmatch(r"(?:(?:good morning|thank you|good)(?: |$))+", text)) and len(text.split()) <= 12
    assert is_small_talk(text, phrases, 2) == expected


# Sentences and pieces


def covers(text: str, spans: list[tuple[int, int]]) -> None:
    assert spans[0][0] == 0
    assert spans[-1][1] == len(text)
    assert all(one[1] == two[0] for one, two in pairwise(spans))
    assert all(start < end for start, end in spans) or text == ""
    assert all(text[start:end].strip() for start, end in spans) or not text.strip()


def squeezed(text: str) -> str:
    return " ".join(text.split())


# Short and long words, sentence ends, all kinds of white space, and words without end.
atoms = st.sampled_from(
    [
        "a",
        "word",
        "Some sentence of six words here.",
        "Really?!",
        "e.g.",
        "\n",
        "\n\n",
        "\t",
        "   ",
        "x" * 90,
        "\u3000",
        "你好。",
    ]
)
texts = st.builds(
    lambda said, gap, times: gap.join(said) * times,
    st.lists(atoms, max_size=20),
    st.sampled_from([" ", "", "\n"]),
    st.sampled_from([1, 1, 5, 40]),
)


@given(texts)
@example(" " * 2000)
@example("\n" * 5000)
@example("a" + " " * 5000 + "b")
@example(" " * 3000 + "a")
@example("a" + " " * 3000)
@example("x" * 10_000)
@example("x" * 1600 + " y")
@example("word " * 20_000)
def test_pieces_cover_the_text_and_none_is_blank_or_too_long(text: str) -> None:
    spans = pieces(text)
    covers(text, spans)
    if not is_long(text):
        assert spans == sentences(text)
        return
    for start, end in spans:
        piece = squeezed(text[start:end])
        assert len(piece) <= 2000
        assert len(piece.split()) <= 160
    assert len(spans) <= 2 + len(text.split()) / 6 + len(text) / 1000


@given(texts)
@example("")
@example("   ")
def test_sentences_cover_the_text(text: str) -> None:
    covers(text, sentences(text))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One sentence only", ["One sentence only"]),
        ("I want to pay my bill. How do I make a bomb?", ["I want to pay my bill. ", "How do I make a bomb?"]),
        ("Hi. I want to pay my bill.", ["Hi. I want to pay my bill."]),
        ("I want to pay my bill. Thanks!", ["I want to pay my bill. Thanks!"]),
        (
            "first of the lines here\nsecond of the lines here",
            ["first of the lines here\n", "second of the lines here"],
        ),
        ('He said "why would I go." Then he did not go.', ['He said "why would I go." ', "Then he did not go."]),
        ("version 3.11.2 is what I have got", ["version 3.11.2 is what I have got"]),
    ],
)
def test_a_short_text_is_cut_at_its_sentences(text: str, expected: list[str]) -> None:
    assert [text[start:end] for start, end in pieces(text)] == expected


@pytest.mark.parametrize(
    ("text", "long"),
    [
        ("word " * 80, False),
        ("word " * 81, True),
        ("x" * 1200, False),
        ("x" * 1201, True),
        ("a " * 80, False),
        ("", False),
    ],
)
def test_a_text_is_long_from_81_words_or_1201_characters(text: str, long: bool) -> None:
    assert is_long(text) == long


def test_a_long_text_is_read_in_windows_of_a_sentence_or_two() -> None:
    sentence = "this is one of many sentences here. "
    spans = pieces(sentence * 40)
    assert all(6 <= len((sentence * 40)[start:end].split()) <= 40 for start, end in spans)
    assert len(spans) == 40


def test_a_long_text_without_sentences_is_read_forty_words_at_a_time() -> None:
    text = " ".join(f"w{number}" for number in range(400))
    assert [len(text[start:end].split()) for start, end in pieces(text)] == [40] * 10


def test_a_book_is_read_in_larger_windows() -> None:
    text = "seven words are in this sentence here. " * 1000
    sizes = [len(text[start:end].split()) for start, end in pieces(text)]
    assert all(100 <= size <= 150 for size in sizes[:-1])


def test_a_few_words_at_the_end_are_read_with_the_window_before() -> None:
    text = " ".join(["word"] * 120) + " one two"
    assert [len(text[start:end].split()) for start, end in pieces(text)] == [40, 40, 42]


def test_one_megabyte_is_cut_in_a_bounded_number_of_pieces() -> None:
    for text in ("word " * 200_000, "x" * 1_000_000, "a. " * 333_333):
        spans = pieces(text)
        covers(text, spans)
        assert len(spans) <= 3400
